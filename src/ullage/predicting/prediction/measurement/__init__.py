"""Computation of a run's memory figures from its journal, after the run has finished."""
