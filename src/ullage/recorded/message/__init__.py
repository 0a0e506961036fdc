"""Reads out-of-memory messages of PyTorch and other programs, from a single message or a log."""
