"""Search for changes that make a training script fit on a GPU. Each change is tried in a run of the script."""
