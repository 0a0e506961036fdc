"""`ullage.TokenBudgetBatchSampler`: batches of items of different lengths that stay within a token budget.

This package does not import torch.
"""
