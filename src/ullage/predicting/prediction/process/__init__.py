"""Start and control, in the parent process, the process that runs a script."""
