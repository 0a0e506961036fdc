"""Which parallel layout of a model fits on so many cards."""
