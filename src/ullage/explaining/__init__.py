"""The `explain` and `tune` analyses: why a recorded run ran out of memory, and which change would have prevented it."""
