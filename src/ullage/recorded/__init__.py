"""Readers for PyTorch's memory recordings and error messages, and a model of its allocator that replays recordings."""
