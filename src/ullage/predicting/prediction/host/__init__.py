"""The host's memory that a run takes."""
