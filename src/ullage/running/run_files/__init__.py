"""The files of a recorded run, as they are written and read: samples, facts, evidence. No torch."""
