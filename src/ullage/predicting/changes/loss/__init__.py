"""Changes to losses that are computed from large logits."""
