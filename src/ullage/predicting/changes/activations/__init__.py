"""Changes to the activations that the backward pass needs: recompute them, do not store them, or store them in host
memory.
"""
