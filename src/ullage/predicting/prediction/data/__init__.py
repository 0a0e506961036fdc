"""The result of a script's run, and the prediction that is made from it, as plain data."""
