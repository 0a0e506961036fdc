"""The analyses behind `ullage explain` and `ullage tune`. They show why a run ran out of GPU memory, and how to prevent
it.
"""
