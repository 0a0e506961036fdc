"""Decide the verdict of a prediction, give its reasons, and report the memory outside PyTorch's allocator."""
