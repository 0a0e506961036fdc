"""Records the GPU memory inside the processes of `ullage run`: memory samples, and snapshots at out-of-memory
errors.
"""
