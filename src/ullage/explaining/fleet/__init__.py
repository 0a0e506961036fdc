"""The comparison of the memory snapshots of many ranks. It shows which ranks are alike, and how the others differ. It
also explains the rank that uses the most memory.
"""
