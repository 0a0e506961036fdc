"""The allocator settings under which a recorded run needs least memory, found by replaying it."""
