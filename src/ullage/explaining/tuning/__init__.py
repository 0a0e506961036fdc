"""The search for the allocator settings with which a recorded run needs the least memory, by replaying the run."""
