"""Batches of items of different lengths under a token budget: `ullage.TokenBudgetBatchSampler`; it needs no torch."""
