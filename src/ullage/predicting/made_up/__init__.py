"""Generate the weights and data that a script tries to load if this machine does not have them."""
