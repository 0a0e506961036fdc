"""Records and restores the Python objects that a training step may change: lists, dictionaries, attributes, and
variables of functions.
"""
