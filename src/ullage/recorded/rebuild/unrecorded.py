"""What a history does not say, as it is assumed: without it, or because a replay comes closer to the history so."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrecorded:
    """What is assumed; nothing by default."""

    block_bytes: Mapping[int, int] = field(default_factory=dict)
    """Sizes of blocks from before recording began, by address, where a rest was not split off."""
    beyond_room_bytes: int = 0
    """The memory that the card has beyond the room: contexts and other processes. An expandable segment takes addresses
    for 9/8 of the whole card, and of free blocks that can grow the allocator prefers the one that can grow least."""
    oom_pool: int = 0
    """The private pool in which requests failed; 0: the default pool."""
    pools: Mapping[int, int] = field(default_factory=dict)
    """The private pools of segments that were given back, by their number among the segments' lives."""
    emptied: Mapping[int, bool] = field(default_factory=dict)
    """Whether the program itself gave back the cache before an entry that allocates, or the allocator for lack of room;
    where nothing is assumed, it was the allocator if room was needed."""
