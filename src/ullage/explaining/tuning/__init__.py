"""Searches for the allocator settings with which a recorded run needs the least memory. Each setting is simulated."""
