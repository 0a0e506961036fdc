"""PyTorch's memory snapshots, read as data: nothing in a file is run."""
