"""Where work is done: in this process's threads, on Ray, by Slurm. It does not know what the work is."""
