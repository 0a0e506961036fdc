"""`ullage.Monitor` watches the memory of a training loop and finds memory leaks."""
