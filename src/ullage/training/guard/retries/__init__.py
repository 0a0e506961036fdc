"""Retries of forward and backward that need less and less memory, and the record of what succeeded for each batch
shape.
"""
