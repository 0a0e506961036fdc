"""Frees memory when a step of the guard runs out of memory, and retries single operations."""
