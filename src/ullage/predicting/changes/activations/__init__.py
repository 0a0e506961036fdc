"""Changes to the activations that are saved for the backward pass: recompute them, avoid saving them, or keep them in
host memory.
"""
