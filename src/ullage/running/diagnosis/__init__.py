"""The diagnosis of this machine's configuration for PyTorch and its memory: what is wrong, and what to do."""
