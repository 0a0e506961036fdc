"""Readers for PyTorch's memory recordings and out-of-memory messages, and a model of PyTorch's allocator, which replays
the recordings.
"""
