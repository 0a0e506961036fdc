"""`ullage.Guard`: training steps that are undone and retried when GPU memory runs out."""
