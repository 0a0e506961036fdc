"""Training idioms, each a small function that makes a training, by family."""
