"""The emulated GPU, the record of its memory allocations, and the tensor values that scripts read from it.

The emulated GPU is a CUDA implementation that runs no kernels.
"""
