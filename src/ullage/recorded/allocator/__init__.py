"""PyTorch's CUDA caching allocator as a model: run a program of allocations under any settings, byte for byte."""
