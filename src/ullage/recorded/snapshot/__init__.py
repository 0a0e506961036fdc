"""Readers for PyTorch's memory snapshots. They never execute code from a file."""
