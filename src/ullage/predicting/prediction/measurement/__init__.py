"""Compute the memory figures of a finished run from its recorded allocations."""
