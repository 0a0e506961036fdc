"""`ullage.owners` and `ullage.release`: the first lists the Python objects that hold GPU memory, the second frees
it.
"""
