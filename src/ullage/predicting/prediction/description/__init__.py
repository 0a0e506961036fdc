"""A prediction arranged into a report."""
