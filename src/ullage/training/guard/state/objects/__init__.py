"""The Python objects that a step may change: lists, dictionaries, attributes, and variables of functions."""
