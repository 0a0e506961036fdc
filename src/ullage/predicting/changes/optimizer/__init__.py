"""Changes to optimizers: how they update parameters, the size of their states, and when gradients are freed."""
