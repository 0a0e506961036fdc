"""The command line of ullage: one small module for each subcommand."""
