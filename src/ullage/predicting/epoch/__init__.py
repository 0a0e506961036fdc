"""Predict the memory use of a whole epoch. All batches are inspected on the host. Only some steps are run. The memory
requests of all steps are replayed.
"""
