"""Runs forward and backward, and retries them with less memory after an out-of-memory error."""
