"""The phases of a run, such as loading and evaluation, and the entries in the record of allocations at which each phase
begins and ends.
"""
