"""`ullage.Monitor` watches the memory of a training loop. It finds leaks, and does not mistake warm-up, longer batches
or fragmentation for a leak.
"""
