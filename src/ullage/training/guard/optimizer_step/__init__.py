"""The optimizer's step in a guard. A dry run tests in advance whether it fits, and a step that runs out of memory in
the middle is resumed.
"""
