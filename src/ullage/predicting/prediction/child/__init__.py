"""In the process of a script: what runs it, and tells the parent."""
