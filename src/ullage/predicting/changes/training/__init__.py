"""How a run trains, gathered in its process: its loop, its model, its loss, its optimizers."""
