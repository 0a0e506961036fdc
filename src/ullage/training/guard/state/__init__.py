"""Records the state that forward and backward change, and restores it after a failed attempt."""
