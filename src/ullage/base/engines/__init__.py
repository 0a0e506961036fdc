"""Engines that run work in parallel: in threads of this process, on a Ray cluster, or as Slurm jobs. An engine can call
any function.
"""
