"""Answers about a run before it starts: a script is run on the emulated GPU, as it is or changed."""
