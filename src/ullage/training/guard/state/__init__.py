"""What forward and backward change: recorded before an attempt, and put back when it fails."""
