"""What a verdict follows from, beside the figures of PyTorch's allocator."""
