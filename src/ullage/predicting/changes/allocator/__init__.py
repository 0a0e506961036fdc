"""Settings of PyTorch's allocator."""
