"""Search for changes that make a training script fit on a GPU. The script is run with each change."""
