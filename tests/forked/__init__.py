"""Processes of tests that are forked from one that has imported torch, instead of importing it anew (`client.run`)."""
