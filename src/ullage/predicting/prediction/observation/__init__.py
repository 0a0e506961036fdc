"""Seen while a script runs: its steps, its owners of memory, its end."""
