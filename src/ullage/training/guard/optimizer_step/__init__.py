"""Runs an optimizer's step so that it is either completed or not started, even if memory runs out. A dry run tests in
advance whether the step fits, and a step that runs out of memory in the middle is resumed.
"""
