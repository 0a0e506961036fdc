"""Compute the memory figures of a finished run from its record of allocations."""
