"""Compute the values of tensors on an emulated GPU, on the CPU and only when they are needed.

An emulated GPU computes nothing. ullage keeps the data that the host sends to it, and records each operation and does
not run it. Some values that a script reads back decide a size or a branch. For such a value, the operations that lead
to it run on the CPU with PyTorch's own kernels. Their inputs are the data that the host sent or, where values are not
known, plausible random values. See docs/values.md.
"""
