"""Samples of a run, handed to programs that keep or draw them."""
