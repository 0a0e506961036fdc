"""Readers for out-of-memory messages of PyTorch and other programs. The text may be a single message or a log."""
