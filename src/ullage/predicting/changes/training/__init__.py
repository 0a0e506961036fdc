"""Facts about how a run trains: its loop, model, loss and optimizers. They are collected in the process of the run."""
