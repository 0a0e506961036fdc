"""Reads and writes the files of `ullage run`: memory samples, facts about processes, and folders of out-of-memory
errors.

This package does not import torch.
"""
