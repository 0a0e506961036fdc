"""Collect facts about how a script trains: its loop, model, loss and optimizers."""
