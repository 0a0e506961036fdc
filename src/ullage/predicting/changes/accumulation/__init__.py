"""Gradient accumulation: forward and backward passes on parts of a batch."""
