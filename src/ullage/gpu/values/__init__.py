"""Compute tensor values for an emulated GPU, on the CPU and only when a script needs them.

ullage keeps the data that the host sends to the emulated GPU, and records each operation without running it. When a
script reads a value that decides a size or a branch, the operations that lead to it run on the CPU with PyTorch's own
kernels. Inputs that are not known are replaced by plausible random values. See docs/values.md.
"""
