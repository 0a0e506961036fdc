"""The comparison of two memory snapshots: how much memory grew, and at which source lines."""
