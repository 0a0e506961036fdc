"""Finds the objects of this process that hold device memory, and frees it: `ullage.owners`, `ullage.release`."""
