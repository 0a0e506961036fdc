"""Changes to saved activations: recompute them, avoid saving them, or keep them in host memory."""
