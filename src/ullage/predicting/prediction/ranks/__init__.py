"""Ranks that each run alone in a process, and the messages that they exchange."""
