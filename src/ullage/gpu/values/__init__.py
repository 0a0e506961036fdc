"""Values of tensors on an emulated GPU: known, random from a seed, or unknown. They are computed on the CPU on demand.

An emulated GPU computes nothing. ullage keeps the data that the host sends to it, and records each operation instead of
running it. When a value is read back that decides a size or a branch, the operations that lead to it run on the CPU
with PyTorch's own kernels. Their inputs are known values or, where values are not known, plausible random values. See
docs/values.md.
"""
