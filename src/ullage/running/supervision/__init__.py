"""`ullage run` from outside: it starts the command, waits for it, and reports on it."""
