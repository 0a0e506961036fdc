"""Readers for PyTorch's out-of-memory messages, alone or in a log."""
