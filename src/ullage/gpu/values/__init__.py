"""What the values on an emulated card are: known, drawn from a seed, or unknown; worked out on the host when asked for.

A card computes nothing. What the host sends to it is remembered, and each operation on it is written down, not run;
where a value is read back that decides a size or a branch, the operations that lead to it are run on the host's CPU, by
PyTorch's own kernels, on values that are known or, where they are not, plausible. See docs/values.md.
"""
