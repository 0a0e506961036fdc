"""Generates a short script that runs out of memory in the same way as a recorded run."""
