"""The process of a script, as its parent sees it."""
