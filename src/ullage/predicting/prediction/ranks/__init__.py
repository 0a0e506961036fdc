"""Ranks that run alone, each in its own process, and what they tell each other."""
