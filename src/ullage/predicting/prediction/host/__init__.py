"""Measurement of the host memory (RAM) that a run uses."""
