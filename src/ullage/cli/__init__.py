"""The command line of ullage. Each subcommand has one small module."""
