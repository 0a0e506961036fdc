"""Changes that save memory for activations: recompute them, avoid storing them, or move them to host memory."""
