"""Changes to optimizers: how optimizers update parameters, the size of their states, and when gradients are freed."""
