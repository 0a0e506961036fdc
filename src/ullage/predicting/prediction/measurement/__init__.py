"""Compute the memory figures of a finished run from its journal of allocations."""
