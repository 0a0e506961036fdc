"""The questions as functions: what each command answers, from Python, with the same names of options."""
