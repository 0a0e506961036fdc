"""The phases of a run: where each begins and ends."""
