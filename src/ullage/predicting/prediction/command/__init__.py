"""A command as it is typed, and what is to run of it."""
