"""The comparison of the memory snapshots of many ranks: which ranks are alike, which differ and by what, and an
explanation of the rank that uses the most memory.
"""
