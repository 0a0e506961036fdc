"""The user's own source, for changes that are written into it."""
