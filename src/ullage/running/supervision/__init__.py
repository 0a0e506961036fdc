"""The supervision of a user's command by `ullage run`: start the command, wait for it, and report on it."""
