"""Retries forward and backward with less and less memory, and remembers what succeeded for each batch shape."""
