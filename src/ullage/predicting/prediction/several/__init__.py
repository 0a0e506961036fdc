"""Predictions of several runs of one script."""
