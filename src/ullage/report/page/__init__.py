"""The page of a report: HTML that needs no network, with its scripts and its style."""
