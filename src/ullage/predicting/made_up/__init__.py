"""Weights and data that are not here, made up where a script asks for them."""
