"""What the forward pass keeps for the backward pass: computed again, never held, or kept on the host."""
