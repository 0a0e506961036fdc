"""What other programs' words of memory mean: the cause in the program's own terms, and its own settings."""
