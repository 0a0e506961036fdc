"""Code that runs in the script's process: it runs the script, measures it, and sends the result to the parent."""
