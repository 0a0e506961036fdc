"""What is configured on this machine for PyTorch and its memory, what is wrong with that, and what to do."""
