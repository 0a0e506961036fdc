"""The `explain` and `tune` analyses. They show why a recorded run ran out of memory, and which change would have
prevented this.
"""
