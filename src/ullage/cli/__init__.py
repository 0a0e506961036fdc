"""The command line of ullage, with one module for each subcommand."""
