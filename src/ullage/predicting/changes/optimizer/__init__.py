"""Changes to optimizers: how they update parameters, how large their states are, and when gradients are freed."""
