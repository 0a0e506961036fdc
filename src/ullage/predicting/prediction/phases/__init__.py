"""The phases of a run, and the journal entries at which each phase begins and ends."""
