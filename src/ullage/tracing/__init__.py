"""Steps and phases of a live run, and the journal of its memory."""
