"""The phases of a run, such as loading and evaluation, and the journal entries at which each phase begins and ends."""
