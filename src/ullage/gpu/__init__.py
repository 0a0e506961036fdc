"""The emulated GPU: a CUDA implementation that runs no kernels, the journal of its memory, and the values that are read
back from it.
"""
