"""Observe a script while it runs: its training steps, the owners of its GPU memory, and how the script ends."""
