"""Gradient accumulation: run the forward and backward passes on parts of a batch."""
