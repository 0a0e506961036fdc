"""Run each rank of a distributed script alone in a process, and let these processes exchange messages."""
