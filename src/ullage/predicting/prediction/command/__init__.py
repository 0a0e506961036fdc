"""Parsing of the command line that the user wants to run: a script, a notebook, a module, or a launcher such as
torchrun.
"""
