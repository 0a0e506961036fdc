"""Generate weights and data that a script loads but that are missing on this machine."""
