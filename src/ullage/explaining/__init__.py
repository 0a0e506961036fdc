"""Answers about a run that was recorded: why it ran out of memory, and what would have prevented it."""
