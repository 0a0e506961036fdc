"""Compares the memory snapshots of many ranks, and explains the rank that uses the most memory."""
