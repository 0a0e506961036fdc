"""The emulated GPU: a CUDA implementation that runs no kernels, the journal of GPU memory allocations, and the values
that a script reads back from the GPU.
"""
