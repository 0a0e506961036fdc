"""Changes to optimizers that save memory in their updates, their states or the gradients."""
