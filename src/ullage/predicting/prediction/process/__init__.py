"""Start and control the process that runs a script."""
