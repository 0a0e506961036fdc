"""Reads PyTorch's memory snapshots and out-of-memory messages. A model of PyTorch's allocator can simulate the recorded
runs.
"""
