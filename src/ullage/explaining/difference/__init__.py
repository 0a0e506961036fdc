"""The difference between two snapshots: what grew, and where."""
