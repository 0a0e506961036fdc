"""Changes that save memory when a loss is computed from large logits."""
