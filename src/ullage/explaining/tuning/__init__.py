"""The search for the allocator settings with which a recorded run needs the least memory. The run is replayed with each
setting.
"""
