"""Predict the memory use of a whole epoch from a few of its steps and the shapes of all batches."""
