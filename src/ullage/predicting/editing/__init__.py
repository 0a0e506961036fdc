"""Edit Python source files as text, without running the user's code."""
