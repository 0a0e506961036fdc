"""Readers for PyTorch's memory snapshots; reading never executes code from a file."""
