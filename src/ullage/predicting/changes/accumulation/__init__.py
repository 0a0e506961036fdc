"""Gradient accumulation: run the forward and backward passes on one part of a batch after the other."""
