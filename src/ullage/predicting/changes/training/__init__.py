"""Facts about how a run trains, collected in its process: its loop, model, loss and optimizers."""
