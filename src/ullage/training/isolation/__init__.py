"""`ullage.isolated` runs a function in a separate process, so that all its memory is freed afterwards."""
