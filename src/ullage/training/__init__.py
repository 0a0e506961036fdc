"""`ullage.Guard`: training steps that survive an out-of-memory error and still compute the same gradients."""
