"""Handles memory in a step that a guard runs: out-of-memory errors, ways to free memory, and retries of single
operations.
"""
