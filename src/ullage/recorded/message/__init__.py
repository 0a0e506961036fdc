"""Readers for out-of-memory messages of PyTorch and other programs, alone or in a log."""
