"""The emulated GPU, the record of GPU memory allocations, and the values that a script reads back from the GPU.

The emulated GPU is a CUDA implementation that runs no kernels.
"""
