"""Code that runs at the start of every Python process that an ullage process starts.

ullage adds the folder of this package's `sitecustomize.py` to PYTHONPATH, so that child processes load the file.
"""
