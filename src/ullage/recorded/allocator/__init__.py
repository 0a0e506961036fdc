"""A model of PyTorch's CUDA caching allocator. It simulates allocations under any allocator settings, exact to the
byte.
"""
