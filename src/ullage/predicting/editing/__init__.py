"""Edits of Python source as text, placed by line and syntax tree. It runs nothing and knows no torch."""
