"""Runs an optimizer's step completely, or not at all, even if memory runs out. A dry run tests first whether the step
fits.
"""
