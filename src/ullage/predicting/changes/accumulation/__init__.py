"""Gradients of a batch that is taken in parts."""
