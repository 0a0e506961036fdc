"""The emulated GPU. It has three parts: a CUDA implementation that runs no kernels, a record of all GPU memory
allocations, and the values that a script reads back from the GPU.
"""
