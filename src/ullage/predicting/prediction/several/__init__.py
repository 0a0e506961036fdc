"""Predictions that need several runs of one script."""
