"""Records and restores Python objects that a training step may change, such as lists and attributes."""
