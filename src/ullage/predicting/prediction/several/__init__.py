"""Make predictions that need several runs of one script."""
