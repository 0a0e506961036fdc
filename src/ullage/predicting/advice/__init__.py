"""Search for changes that make a training script fit on a GPU; each change is tried by running the script with it."""
