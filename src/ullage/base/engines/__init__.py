"""Engines that run work in parallel: in threads of this process, on a Ray cluster, or as Slurm jobs.

The engines do not depend on what the work is.
"""
