"""Runs an optimizer's step either completely or not at all, even if memory runs out."""
