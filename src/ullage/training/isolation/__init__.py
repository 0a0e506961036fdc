"""`ullage.isolated`: runs a function in a separate process, so that all memory that it uses is freed when it ends."""
