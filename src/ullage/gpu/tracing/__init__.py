"""The tracing of a process: the journal of allocations with their source lines, Python stacks, and the import of
torch.
"""
