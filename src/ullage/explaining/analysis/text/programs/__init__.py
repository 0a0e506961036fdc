"""Explains out-of-memory messages of programs other than PyTorch. The advice names settings of those programs."""
