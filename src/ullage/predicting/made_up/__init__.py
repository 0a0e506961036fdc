"""Generate the weights and data that a script tries to load and that this machine does not have."""
