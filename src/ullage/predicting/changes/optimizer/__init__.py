"""Optimizers: how they update, what their states take, and when gradients are given back."""
