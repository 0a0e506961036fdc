"""The largest value that fits: probes, the search among them, and changes that leave the script as it is."""
