"""Decide whether a script fits, explain the reason, and report memory outside PyTorch's allocator."""
