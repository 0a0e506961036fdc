"""What a run tells and what a prediction says, as plain data."""
