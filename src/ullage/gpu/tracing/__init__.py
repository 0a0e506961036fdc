"""Record a process's memory allocations, and the source lines and Python stacks that request them."""
