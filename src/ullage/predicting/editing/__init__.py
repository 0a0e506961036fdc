"""Edits of Python source files as text, placed by line number and syntax tree. This package runs no user code and does
not import torch.
"""
