"""Measure the host memory (RAM) that a predicted run uses."""
