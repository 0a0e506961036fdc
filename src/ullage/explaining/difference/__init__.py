"""The comparison of two memory snapshots. It shows how much memory grew, and at which source lines."""
