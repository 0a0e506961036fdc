"""What every Python process that one of ours starts does at its beginning; PYTHONPATH leads to `sitecustomize.py`."""
