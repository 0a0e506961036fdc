"""Predict the memory of a whole epoch: inspect all batches on the host, run few steps, and replay the rest."""
