"""The command `ullage doctor`: which settings of this machine are wrong for PyTorch and GPU memory, and how to fix
them.
"""
