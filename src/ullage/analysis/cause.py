"""Which of the causes it was, and the numbers that say so."""

from enum import StrEnum
from typing import Final

import numpy as np

from ullage.allocator.replay import State
from ullage.analysis.growth import Growth
from ullage.analysis.recording import Recording, segment_bytes
from ullage.rebuild import UNBOUNDED_BYTES

_BOGUS_BYTES: Final = 1 << 44  # 16 TiB: no card has it
_FULL: Final = 0.95
"""From this share of the room on, packed without a gap, memory counts as full: the next request would have failed."""


class Cause(StrEnum):
    """Why a request failed: the whole taxonomy."""

    TRULY_FULL = "truly_full"
    FRAGMENTED = "fragmented"
    LEAK = "leak"
    PENDING_FREES = "pending_frees"
    OTHER_PROCESS = "other_process"
    LIMIT = "limit"
    ADDRESS_SPACE = "address_space"
    BOGUS_SIZE = "bogus_size"
    DISGUISED = "disguised"
    CANNOT_TELL = "cannot_tell"


def evidence_of(recording: Recording) -> dict[str, int]:
    """Return the numbers at the moment that matters; in bytes unless a name says otherwise.

    allocated + pending + cached = reserved, and reserved + free = room, where the room is known.
    """
    done, moment = recording.done, recording.moment
    now = moment.now
    held_back = np.isin(moment.blocks.key, list(recording.held_back)) & (moment.blocks.state == State.ALLOCATED)
    held_back_bytes = int(moment.blocks.size[held_back].sum())
    found = {
        "allocated_bytes": now.allocated_bytes - held_back_bytes,
        "reserved_bytes": now.reserved_bytes,
        "cached_bytes": now.reserved_bytes - now.active_bytes,
        "pending_bytes": now.active_bytes - now.allocated_bytes + held_back_bytes,
        "peak_allocated_bytes": done.peak.allocated_bytes,
        "peak_reserved_bytes": done.peak.reserved_bytes,
        "retries": done.retries,
        "driver_calls": done.driver_calls,
    }
    if recording.rebuilt.room_bytes < UNBOUNDED_BYTES:
        found["room_bytes"] = recording.rebuilt.room_bytes
        found["free_bytes"] = recording.rebuilt.room_bytes - now.reserved_bytes
    if recording.failing_op is None:
        return found
    requested = int(recording.program.size[recording.failing_op])
    free = moment.blocks.size[moment.blocks.state == State.FREE]
    found["requested_bytes"] = requested
    found["needed_segment_bytes"] = segment_bytes(requested, recording.rebuilt.settings)
    found["largest_free_block_bytes"] = int(free.max()) if len(free) else 0
    found["missing_bytes"] = max(0, found["needed_segment_bytes"] - found["free_bytes"] - found["cached_bytes"])
    if recording.refused_bytes:
        found["refused_bytes"] = recording.refused_bytes
    return found


def cause_of(recording: Recording, evidence: dict[str, int], growth: Growth | None) -> Cause:
    """Return the one cause."""
    if recording.failing_op is None:
        return Cause.LEAK if growth else Cause.CANNOT_TELL
    if not 0 <= evidence["requested_bytes"] <= _BOGUS_BYTES:
        return Cause.BOGUS_SIZE
    if recording.refused_bytes:
        return Cause.ADDRESS_SPACE if recording.rebuilt.settings.expandable_segments else Cause.LIMIT
    needed, usable = evidence["needed_segment_bytes"], evidence["free_bytes"] + evidence["cached_bytes"]
    pending = evidence["pending_bytes"]
    if pending and usable < needed <= usable + pending:
        return Cause.PENDING_FREES
    packed = evidence["allocated_bytes"] + pending + needed
    if usable >= needed and packed <= _FULL * evidence["room_bytes"]:
        return Cause.FRAGMENTED
    if growth and growth.bytes_per_step * growth.steps * 4 >= evidence["allocated_bytes"]:
        return Cause.LEAK
    return Cause.TRULY_FULL
