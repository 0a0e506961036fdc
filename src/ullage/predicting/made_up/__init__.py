"""Generate weights and data that a script loads and that this machine does not have."""
