"""The result of a script's run and the prediction from it, as plain data."""
