"""Verdicts on out-of-memory messages of programs other than PyTorch, with the settings of those programs."""
