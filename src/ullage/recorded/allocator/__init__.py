"""A model of PyTorch's CUDA caching allocator. It runs a list of allocations with any allocator settings, and is exact
to the byte.
"""
