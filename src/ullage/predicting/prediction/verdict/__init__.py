"""The verdict of a prediction: its reasons, and the memory outside PyTorch's allocator."""
