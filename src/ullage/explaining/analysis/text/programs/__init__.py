"""Verdicts on out-of-memory messages of programs other than PyTorch. The remedies are settings of those programs."""
