"""Folders with the snapshots of many ranks, explained."""
