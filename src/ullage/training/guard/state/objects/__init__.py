"""The contents of Python objects that a step may change: lists, dictionaries, attributes, variables of functions."""
