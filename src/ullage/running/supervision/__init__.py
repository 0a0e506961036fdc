"""Starts the user's command for `ullage run`, waits for its end, and reports on it."""
