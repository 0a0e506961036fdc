"""Running a function in a process of its own, so that all its memory is freed: `ullage.isolated`."""
