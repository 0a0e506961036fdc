"""Search for the largest value of a script's option that fits, and for changes that allow a larger one."""
