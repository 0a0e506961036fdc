"""Record what a process does: its allocations, the source lines that request them, Python stacks, and the import of
torch.
"""
