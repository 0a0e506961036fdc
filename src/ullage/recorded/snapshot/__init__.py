"""Reads PyTorch's memory snapshots without executing code from a file."""
