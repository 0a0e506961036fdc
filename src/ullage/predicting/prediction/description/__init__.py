"""Arranging a prediction into a report."""
