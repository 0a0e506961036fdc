"""A batch taken in parts: how it is cut, what each part counts, and whether the parts sum to the whole."""
