"""Observation of a script while it runs: its steps, the owners of its memory, and how it ends."""
