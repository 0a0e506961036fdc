"""Search for the largest value of an option that fits, and for changes that allow more without editing the script."""
