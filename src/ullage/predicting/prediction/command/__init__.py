"""Parse the user's command: a script, a notebook, a module, or a launcher such as torchrun."""
