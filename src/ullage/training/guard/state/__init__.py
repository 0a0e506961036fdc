"""The program state that forward and backward change. The guard records it before an attempt, and restores it after a
failure.
"""
