"""Snapshots of many ranks: which ranks are alike, which differ and by what, and why the fullest is the fullest."""
