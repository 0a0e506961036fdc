"""Find GPU memory that a script uses at its memory peak although it could avoid it."""
