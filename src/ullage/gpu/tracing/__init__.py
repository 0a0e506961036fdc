"""The allocations of a process with the source lines that asked for them: the journal, stacks, torch's import."""
