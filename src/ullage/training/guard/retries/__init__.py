"""Retries of forward and backward: the order of plans, the plans that succeeded before, and ways to save memory."""
