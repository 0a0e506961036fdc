"""Explains an out-of-memory error from its message or a log. The memory figures in the explanation add up to the GPU's
memory.
"""
