"""Compares two memory snapshots. The comparison shows how much memory grew, and at which source lines."""
