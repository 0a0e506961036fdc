"""Make predictions that need several runs of a script."""
