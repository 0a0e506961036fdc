"""Create the report of a prediction."""
