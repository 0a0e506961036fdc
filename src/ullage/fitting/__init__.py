"""The largest value that fits: probes, the search among them, and the levers that need no change to the script."""
