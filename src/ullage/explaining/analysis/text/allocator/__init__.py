"""Explains PyTorch's own out-of-memory errors, one cause per module."""
