"""The process of `ullage run`: it starts the command, waits for it, and reports on it."""
