"""Find the phases of a run, such as loading, steps and evaluation."""
