"""From the journal of a finished run to its figures."""
