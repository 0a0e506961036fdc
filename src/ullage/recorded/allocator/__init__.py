"""A model of PyTorch's CUDA caching allocator, which runs a list of allocations with any settings, exact to the
byte.
"""
