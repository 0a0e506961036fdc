"""Records the GPU memory of each process that `ullage run` starts."""
