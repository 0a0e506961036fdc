"""The optimizer's step: tried out without writing, and completed where memory runs out."""
