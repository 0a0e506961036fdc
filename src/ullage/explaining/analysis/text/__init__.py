"""Explains an out-of-memory error from its message or a log."""
