"""The explanation of a recorded run: who held memory, why a request failed, and what would have prevented it."""
