"""The result of a script's run, and the prediction that ullage makes from it, as plain data."""
