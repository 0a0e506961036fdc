"""A model of PyTorch's CUDA caching allocator, which runs a list of allocations with any allocator settings, exact to
the byte.
"""
