"""Run a script, measure its memory, and send the result to the parent process."""
