"""Start and control of the process that runs a script, from the side of the parent process."""
