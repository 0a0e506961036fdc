"""PyTorch's out-of-memory messages, read alone or from a log."""
