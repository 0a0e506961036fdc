"""Code that runs at the start of every Python process that an ullage process starts.

PYTHONPATH leads to its `sitecustomize.py`.
"""
