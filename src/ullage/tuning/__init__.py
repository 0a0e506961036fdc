"""The settings of the allocator under which a recorded run needs least, found by replaying it."""
