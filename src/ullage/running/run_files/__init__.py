"""The files that `ullage run` records: memory samples, facts about processes, and folders of out-of-memory errors.

This package reads and writes the files. It does not import torch.
"""
