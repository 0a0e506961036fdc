"""`ullage run` from outside: the command that it starts, watches, and tells of."""
