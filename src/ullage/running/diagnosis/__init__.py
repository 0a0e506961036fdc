"""The command `ullage doctor` finds settings of this machine that cause problems with PyTorch or GPU memory."""
