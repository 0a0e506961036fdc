"""Run functions in parallel: in threads of this process, on a Ray cluster, or as Slurm jobs."""
