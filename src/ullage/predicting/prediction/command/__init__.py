"""Parse the command that the user wants to run: a script, a notebook, a module, or a launcher such as torchrun."""
