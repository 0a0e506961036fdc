"""Observe the training steps, the owners of GPU memory, and the end of a script."""
