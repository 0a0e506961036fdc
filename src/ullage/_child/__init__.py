"""What every Python process that one of ours starts does at its beginning: `sitecustomize.py`, found by PYTHONPATH."""
