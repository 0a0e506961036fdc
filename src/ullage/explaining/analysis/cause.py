"""Decides why a memory allocation failed."""

from enum import StrEnum
from typing import Final

import numpy as np

from ullage.base.units import BOGUS_BYTES, MIB
from ullage.explaining.analysis.growth import Accumulation, StepGrowth
from ullage.explaining.analysis.recording import Recording, segment_bytes
from ullage.recorded.allocator.replay import BlockColumns, State
from ullage.recorded.rebuild import UNBOUNDED_BYTES

Evidence = dict[str, int]
"""The figures of an explanation, by name. Values are in bytes unless the name says otherwise."""
_FULL_SHARE: Final = 0.05
# A limit in bytes for the decision whether a GPU is full. Imagine that all blocks are packed without gaps. The GPU is
# full if the remaining free memory is less than this limit and less than the share `_FULL_SHARE` of the capacity.
_FULL_BYTES: Final = 512 * MIB

# A number of blocks. If one source line keeps at least this many, growing memory is the cause of the failure, even if
# memory is fragmented.
_LEAST_KEPT_BLOCKS: Final = 100


class Cause(StrEnum):
    """The causes that `ullage explain` can report for a failed allocation."""

    TRULY_FULL = "truly_full"
    FRAGMENTED = "fragmented"
    PINNED_BY_SPLITS = "pinned_by_splits"
    """Memory was fragmented: one segment had enough free bytes in total, but no single free block was large enough."""
    LEAK = "leak"
    ACCUMULATION = "accumulation"
    """A loop allocates blocks at one source line and never frees them."""
    PENDING_FREES = "pending_frees"
    OTHER_PROCESS = "other_process"
    LIMIT = "limit"
    ADDRESS_SPACE = "address_space"
    BOGUS_SIZE = "bogus_size"
    DISGUISED = "disguised"
    """GPU memory ran out outside PyTorch's allocator, often with an error that does not say so."""
    HOST_MEMORY = "host_memory"
    JOB_LIMIT = "job_limit"
    """A container, pod or batch job reached its limit of host memory."""
    COMMIT_LIMIT = "commit_limit"
    """Windows could not commit more memory: host memory plus page file were used up."""
    PINNED_MEMORY = "pinned_memory"
    SHARED_MEMORY = "shared_memory"
    """The file system /dev/shm is full."""
    UNIFIED_MEMORY = "unified_memory"
    """GPU and CPU use the same memory, which is full."""
    ON_CHIP = "on_chip"
    """A kernel needs more shared memory per block than the chip has."""
    DID_NOT_FAIL = "did_not_fail"
    """No allocation failed."""
    CANNOT_TELL = "cannot_tell"

    @property
    def heading(self) -> str:
        """The heading of a report about this cause, such as "NOT ENOUGH GPU MEMORY"."""
        return _HEADINGS[self]

    @property
    def phrase(self) -> str:
        """The heading in lower case, for use within a sentence or a table: "not enough GPU memory"."""
        return (
            self.heading.lower()
            .replace("gpu", "GPU")
            .replace("cpu", "CPU")
            .replace("windows", "Windows")
            .replace("pytorch", "PyTorch")
        )


_HEADINGS: Final = {
    Cause.TRULY_FULL: "NOT ENOUGH GPU MEMORY",
    Cause.FRAGMENTED: "FRAGMENTATION",
    Cause.PINNED_BY_SPLITS: "FRAGMENTATION: SMALL BLOCKS PIN A SEGMENT",
    Cause.LEAK: "MEMORY LEAK",
    Cause.ACCUMULATION: "MEMORY LEAK IN A LOOP",
    Cause.PENDING_FREES: "FREED MEMORY STILL IN USE ON ANOTHER STREAM",
    Cause.OTHER_PROCESS: "ANOTHER PROCESS USES THE GPU",
    Cause.LIMIT: "A CONFIGURED LIMIT IS TOO LOW",
    Cause.ADDRESS_SPACE: "OUT OF ADDRESS SPACE",
    Cause.BOGUS_SIZE: "IMPOSSIBLE REQUEST SIZE",
    Cause.DISGUISED: "GPU MEMORY RAN OUT OUTSIDE OF PYTORCH",
    Cause.HOST_MEMORY: "HOST MEMORY RAN OUT",
    Cause.JOB_LIMIT: "THE JOB'S LIMIT OF HOST MEMORY WAS REACHED",
    Cause.COMMIT_LIMIT: "THE WINDOWS COMMIT LIMIT WAS REACHED",
    Cause.PINNED_MEMORY: "HOST MEMORY COULD NOT BE PINNED",
    Cause.SHARED_MEMORY: "/DEV/SHM IS FULL",
    Cause.UNIFIED_MEMORY: "THE MEMORY THAT CPU AND GPU SHARE IS FULL",
    Cause.ON_CHIP: "A KERNEL NEEDS TOO MUCH SHARED MEMORY",
    Cause.DID_NOT_FAIL: "NO OUT-OF-MEMORY ERROR",
    Cause.CANNOT_TELL: "CAUSE UNKNOWN",
}


def is_full(room_bytes: int, left_bytes: int) -> bool:
    """Return whether a GPU counts as full. `left_bytes` is the memory that would remain free without any
    fragmentation.
    """
    return left_bytes < min(_FULL_SHARE * room_bytes, _FULL_BYTES)


def evidence_of(recording: Recording) -> Evidence:
    """Return the allocator's memory figures when the allocation failed, or at the memory peak if none failed.

    Allocated, pending and cached bytes add up to the reserved bytes. If the capacity is known, reserved and free bytes
    add up to the capacity.
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
    own = recording.pool_of_ops()[recording.failing_op]
    others = (moment.blocks.state == State.FREE) & (moment.blocks.pool != own)
    if others.any():
        found["other_pools_cached_bytes"] = int(moment.blocks.size[others].sum())
    packed = found["allocated_bytes"] + found["pending_bytes"] + found["needed_segment_bytes"]
    found["left_bytes"] = max(0, found["room_bytes"] - packed)
    fraction = recording.rebuilt.settings.per_process_memory_fraction
    if recording.refused_bytes:
        found["refused_bytes"], found["limit_bytes"] = recording.refused_bytes, found["room_bytes"]
    elif recording.failing_op in done.rejected_ops or fraction < 1:
        found["limit_bytes"] = int(fraction * found["room_bytes"])
    return found


def cause_of(
    recording: Recording, evidence: Evidence, growth: StepGrowth | None, accumulation: Accumulation | None = None
) -> Cause:
    """Return the main cause of the failed allocation."""
    if recording.failing_op is None:
        if growth:
            return Cause.LEAK
        is_contradicted = recording.has_recorded_failure and not recording.capacity_is_given
        return Cause.CANNOT_TELL if is_contradicted or not len(recording.history) else Cause.DID_NOT_FAIL
    if not 0 <= evidence["requested_bytes"] <= BOGUS_BYTES:
        return Cause.BOGUS_SIZE
    if recording.refused_bytes:
        return Cause.ADDRESS_SPACE if recording.rebuilt.settings.expandable_segments else Cause.LIMIT
    limit = evidence.get("limit_bytes", evidence["room_bytes"])
    if recording.failing_op in recording.done.rejected_ops or (
        evidence["free_bytes"] >= evidence["needed_segment_bytes"]
        and evidence["reserved_bytes"] + evidence["needed_segment_bytes"] > limit
    ):
        return Cause.LIMIT
    needed, usable = evidence["needed_segment_bytes"], evidence["free_bytes"] + evidence["cached_bytes"]
    pending = evidence["pending_bytes"]
    if pending and usable < needed <= usable + pending:
        return Cause.PENDING_FREES
    if accumulation is not None:
        return Cause.ACCUMULATION  # a larger capacity would only delay the failure, whatever else is true at that point
    if growth and growth.line_blocks >= _LEAST_KEPT_BLOCKS and 2 * growth.line_bytes >= evidence["allocated_bytes"]:
        return Cause.LEAK  # as for an accumulation, a larger capacity would only delay the failure
    if usable >= needed and not is_full(evidence["room_bytes"], evidence["left_bytes"]):
        return Cause.PINNED_BY_SPLITS if _most_free_in_one(recording.moment.blocks) >= needed else Cause.FRAGMENTED
    if growth and growth.bytes_per_step * growth.steps * 4 >= evidence["allocated_bytes"]:
        return Cause.LEAK
    return Cause.TRULY_FULL


def _most_free_in_one(blocks: BlockColumns) -> int:
    free = blocks.state == State.FREE
    return int(np.bincount(blocks.segment[free], weights=blocks.size[free]).max(initial=0))
