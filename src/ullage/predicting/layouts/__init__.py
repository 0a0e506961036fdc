"""Search for the combinations of data, tensor and pipeline parallelism with which a model fits on the GPUs."""
