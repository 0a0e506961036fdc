"""Generate weights and data that a script tries to load and that are not on this machine."""
