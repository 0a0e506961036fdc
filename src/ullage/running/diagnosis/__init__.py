"""The diagnosis of this machine's configuration for PyTorch and GPU memory: what is wrong, and how to fix it."""
