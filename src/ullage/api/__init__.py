"""The Python function of each command, with keywords named like the command's options."""
