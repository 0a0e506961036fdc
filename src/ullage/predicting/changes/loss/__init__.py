"""Losses of large logits."""
