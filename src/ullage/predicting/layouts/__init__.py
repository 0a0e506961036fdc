"""Search for the parallel layouts of a model that fit on a given number of GPUs."""
