"""Frees GPU memory after an out-of-memory error, and retries single operations."""
