"""Edits of Python source files as text. This package runs no user code and does not import torch."""
