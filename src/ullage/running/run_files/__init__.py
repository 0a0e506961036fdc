"""Reads and writes the files of `ullage run`. This package does not import torch."""
