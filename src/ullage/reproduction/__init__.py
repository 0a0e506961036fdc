"""A script of a few lines that runs out of memory in the same way as a recorded run."""
