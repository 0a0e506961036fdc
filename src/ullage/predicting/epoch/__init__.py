"""Predict the memory use of a whole epoch. Look at all batches on the host, run only some steps, and replay the memory
requests of all steps.
"""
