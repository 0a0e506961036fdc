"""What PyTorch records and says about memory, read as data, and its allocator as a model that replays it."""
