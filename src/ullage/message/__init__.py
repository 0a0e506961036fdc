"""PyTorch's texts of memory running out, read: alone, or out of a log."""
