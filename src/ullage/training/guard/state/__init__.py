"""The state that forward and backward change: recorded before an attempt, and restored when the attempt fails."""
