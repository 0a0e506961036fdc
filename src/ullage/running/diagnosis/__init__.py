"""The diagnosis of `ullage doctor`: what is wrong with this machine's settings for PyTorch and GPU memory, and how to
fix it.
"""
