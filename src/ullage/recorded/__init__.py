"""Readers for PyTorch's memory recordings and out-of-memory messages. Also a model of PyTorch's allocator, which
replays recordings.
"""
