"""Parallel layouts: each kind of rank, alone in its process, beside itself among others."""
