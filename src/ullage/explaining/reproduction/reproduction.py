"""Reduces a recorded run to as few allocations as possible that still fail in the same way.

A script cannot repeat every operation of a run. So some operations are replaced before anything is left out, and the
whole run must still fail in the same way: a block that other streams still used is freed when its memory became
reusable; an earlier request that failed empties the cache; and memory that existed when recording began is allocated
first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np

from ullage.base.errors import UsageError
from ullage.base.public import public
from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.assumption import closest
from ullage.explaining.analysis.cause import Cause, evidence_of
from ullage.explaining.analysis.contradiction import check
from ullage.explaining.analysis.recording import Recording
from ullage.explaining.reproduction.oracle import Oracle, as_a_script_sets_them
from ullage.explaining.reproduction.shrink import Sketch, shrink
from ullage.recorded.allocator.placement import PLACEMENTS
from ullage.recorded.history import Action, History, without_trace
from ullage.recorded.program import UNMAPPED_KEY, Column, Op, StartSegment
from ullage.recorded.settings import BLOCK_UNIT_BYTES, LARGE_SEGMENT_BYTES, LARGEST_SMALL_BYTES, Settings

SCHEMA: Final = 1
_OWN_SEGMENT_FROM_BYTES: Final = LARGE_SEGMENT_BYTES // 2  # A request of this size or more gets its own segment.
Row = tuple[int, int, int, int]
"""An allocator operation, as (op, key, bytes, stream)."""
# A block or a hole in a segment, as (bytes, requested bytes, key of the block). A hole is free memory, and its key is
# -1.
_Piece = tuple[int, int, int]


@public
@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """A short list of allocations and frees that fails like a recorded run. Sizes are in bytes."""

    sketch: Sketch
    settings: Settings
    """The allocator settings of the generated script, without its memory limit."""
    cause: Cause
    requested_bytes: int
    needed_bytes: int
    """The bytes that the failing allocation needs from the driver."""
    room_bytes: int
    free_bytes: int
    cached_bytes: int
    allocated_bytes: int
    recorded_free_bytes: int
    recorded_cached_bytes: int
    allocations: int
    """The number of allocations in the generated script, including the failing one."""
    recorded_allocations: int
    """The number of allocations in the original run, including blocks from before the recording."""
    expandable_helps: bool
    """Whether expandable segments prevent the failure."""
    trials: int
    finished: bool
    """Whether the search for a shorter script finished before the time limit. If so, removing any allocation from the
    script would prevent the failure.
    """
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return this reproduction as plain data for `json.dumps`."""
        names = [field.name for field in fields(self) if field.name not in ("sketch", "settings")]
        told = {name: getattr(self, name) for name in names}
        return {"schema": SCHEMA, **told, "cause": self.cause.value, "notes": list(self.notes)}


def reproduce(
    history: History,
    *,
    semantics: str | None = None,
    alloc_conf: str | None = None,
    capacity_bytes: int | None = None,
    seconds: float = 30.0,
    keep_sizes: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Reproduction:
    """Reduce a recorded run to the few allocations that make it fail in the same way.

    Args:
        history: the recording of one device.
        semantics: the allocator's version: one of `ullage.recorded.settings.SEMANTICS`.
        alloc_conf: the allocator settings of the run, if the snapshot does not record them.
        capacity_bytes: the most bytes that the allocator could reserve, if no request failed.
        seconds: the time limit for shrinking; the smallest sketch so far is returned when it ends.
        keep_sizes: only leave allocations out; do not merge allocations or round their sizes.
        progress: called with a short text at every step.

    Raises:
        SettingsError: `alloc_conf` cannot be read.
        UsageError: no request failed, or the request does not fail in a script.
    """
    progress("rebuilding the run")
    assumed = closest(history, semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes)
    rebuilt = assumed.program_of(history, semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes)
    check(history, rebuilt)
    recording = Recording.of(history, rebuilt)
    if recording.failing_op is None:
        raise UsageError(_nothing_failed(recording, capacity_bytes))
    sketch = sketch_of(recording)
    oracle = Oracle.of(recording, sketch)
    shrunk = shrink(sketch, oracle.fails, seconds=seconds, keep_sizes=keep_sizes, progress=progress)
    seen, recorded = oracle.evidence(oracle.run(shrunk.sketch)), evidence_of(oracle.recording)
    return Reproduction(
        sketch=shrunk.sketch,
        settings=as_a_script_sets_them(recording.rebuilt.settings),
        cause=oracle.cause,
        requested_bytes=seen["requested_bytes"],
        needed_bytes=seen["needed_segment_bytes"],
        room_bytes=oracle.room_bytes,
        free_bytes=seen["free_bytes"],
        cached_bytes=seen["cached_bytes"],
        allocated_bytes=seen["allocated_bytes"],
        recorded_free_bytes=recorded["free_bytes"],
        recorded_cached_bytes=recorded["cached_bytes"],
        allocations=shrunk.sketch.n_allocations,
        recorded_allocations=_recorded_allocations(recording),
        expandable_helps=oracle.expandable_helps,
        trials=shrunk.trials,
        finished=shrunk.finished,
        notes=_notes(recording, oracle, None if shrunk.finished else seconds),
    )


def _notes(recording: Recording, oracle: Oracle, late_seconds: float | None) -> tuple[str, ...]:
    notes = []
    failures = int(np.count_nonzero(recording.history.action == Action.OOM))
    if failures > 1:
        which = "last one" if recording.is_recorded_failure else "first request that fails with the given capacity"
        notes.append(f"{failures} requests failed in the run; this script reproduces the {which}")
    if not recording.rebuilt.is_whole:
        segments = recording.program.start
        blocks = sum(key >= 0 for segment in segments for *_, key in segment.blocks)
        notes.append(
            f"recording began after the start of the process: {blocks:,} blocks in {len(segments):,} segments existed; "
            "those that are needed are allocated first"
        )
    if recording.refused_bytes:
        spare = text_of_bytes(recording.refused_bytes)
        notes.append(
            f"the driver refused the request with {spare} of its memory still free; the script sets a limit instead"
        )
    if oracle.room_bytes != recording.rebuilt.room_bytes:
        notes.append(
            f"the script's limit is {text_of_bytes(oracle.room_bytes)}, while the run's capacity was "
            f"{text_of_bytes(recording.rebuilt.room_bytes)}: PyTorch's limit is not the same as the end of the GPU's "
            "memory"
        )
    if len(oracle.placements) < len(PLACEMENTS):
        notes.append(f"the failure depends on where the driver places segments: {', '.join(oracle.placements)}")
    if late_seconds is not None:
        notes.append(
            f"the time limit of {late_seconds:g} seconds ended the search; with more time the script may get shorter "
            "(--budget)"
        )
    return tuple(notes)


def _nothing_failed(recording: Recording, capacity_bytes: int | None) -> str:
    if not len(recording.history):
        return without_trace("reproduce")
    reserved_bytes = recording.done.peak.reserved_bytes
    there_bytes = sum(segment.reserved_bytes for segment in recording.program.start)
    peak, there = text_of_bytes(reserved_bytes), text_of_bytes(there_bytes)
    capacity = f" with capacity={text_of_bytes(capacity_bytes)}" if capacity_bytes is not None else ""
    if reserved_bytes and reserved_bytes == there_bytes:
        return (
            f"no request fails{capacity} or with a lower capacity: all of the {there} that the run used were "
            "reserved before recording began, and the run requested no more from the driver; record from the start "
            "of the process"
        )
    if capacity_bytes is None:
        return (
            f"no request fails in this recording (at most {peak} are reserved), so there is nothing to reproduce; "
            "record until the error occurs, or give a lower value as capacity= to see which request would fail on a "
            "smaller GPU"
        )
    least = f" and more than the {there} that were reserved when recording began" if there_bytes else ""
    return f"no request fails{capacity}: at most {peak} are reserved; expected a capacity below that{least}"


def _recorded_allocations(recording: Recording) -> int:
    before = sum(key >= 0 for segment in recording.program.start for *_, key in segment.blocks)
    return before + int(np.count_nonzero(recording.program.op == Op.ALLOCATE))


# ---- the run, written as a script could execute it


def sketch_of(recording: Recording) -> Sketch:
    """Return a failed run as a list of allocations, frees and `empty_cache` calls that starts with an empty
    allocator.
    """
    program, settings = recording.program, recording.rebuilt.settings
    op, key = program.op.copy(), program.key.copy()
    late = np.zeros(int(key.max()) + 1, bool)
    late[key[op == Op.RECORD_STREAM]] = True
    rows = (op <= Op.EMPTY_CACHE) & (op != Op.RECORD_STREAM) & ~((op == Op.FREE) & late[key])
    _free_when_back(program.op, program.stream, op, key, rows)
    entries = recording.rebuilt.row_of_op[: len(op)]
    failed = (entries >= 0) & (recording.history.action[entries] == Action.OOM)
    rows &= ~(failed & (op == Op.FREE))
    op[failed & (op == Op.ALLOCATE) & (np.arange(len(op)) < len(op) - 1)] = Op.EMPTY_CACHE
    beginning = beginning_of(program.start, settings, first_key=len(recording.rebuilt.row_of_key))
    columns = np.array(beginning, np.int64).reshape(-1, 4)
    first_key = max(len(recording.rebuilt.row_of_key), int(columns[:, 1].max(initial=0)) + 1)
    emptied = np.flatnonzero(op == Op.EMPTY_CACHE)
    key[emptied] = first_key + np.arange(len(emptied))
    recorded = Sketch(op=op, key=key, size=np.where(op == Op.ALLOCATE, program.size, 0), stream=program.stream).of_rows(
        rows
    )
    return Sketch(
        op=np.concatenate((columns[:, 0], recorded.op)),
        key=np.concatenate((columns[:, 1], recorded.key)),
        size=np.concatenate((columns[:, 2], recorded.size)),
        stream=np.concatenate((columns[:, 3], recorded.stream)),
    )


def _free_when_back(ops: Column, streams: Column, op: Column, key: Column, rows: Column) -> None:
    waiting: dict[int, int] = {}
    for row in np.flatnonzero(np.isin(ops, (Op.RECORD_STREAM, Op.COMPLETE))).tolist():
        stream = int(streams[row])
        if ops[row] == Op.RECORD_STREAM:
            waiting[stream] = int(key[row])
        elif stream in waiting:
            op[row], key[row], rows[row] = Op.FREE, waiting.pop(stream), True


def beginning_of(start: Sequence[StartSegment], settings: Settings, *, first_key: int) -> list[Row]:
    """Return the operations that create the recorded segments, beginning with an empty allocator.

    A segment is allocated as a whole and freed to the cache. Then its blocks are allocated in order of their addresses,
    with a temporary block in every hole; at the end, these temporary blocks are freed. If a hole is too small for a
    block, the block before it is enlarged by the size of the hole. Unmapped pages inside an expandable segment are not
    recreated.

    Args:
        start: the segments, with blocks whose keys are those of the program.
        settings: the run's settings.
        first_key: the first unused key, for the temporary blocks.
    """
    rows: list[Row] = []
    holes: list[Row] = []
    key = first_key
    for segment in start:
        pieces = list(_pieces(segment))
        size_bytes = sum(size for size, *_ in segment.blocks)
        if _is_asked_for_whole(segment, pieces, size_bytes, settings):
            rows.append((Op.ALLOCATE, key, size_bytes, segment.stream))
            rows.append((Op.FREE, key, 0, segment.stream))
            key += 1
        for size, asked, owner in pieces:
            fits = -(-max(asked, 1) // BLOCK_UNIT_BYTES) * BLOCK_UNIT_BYTES == size
            number = owner
            if owner < 0:
                number, key = key, key + 1
                holes.append((Op.FREE, number, 0, segment.stream))
            rows.append((Op.ALLOCATE, number, asked if fits else size, segment.stream))
    return rows + holes


def _is_asked_for_whole(segment: StartSegment, pieces: list[_Piece], size_bytes: int, settings: Settings) -> bool:
    if segment.is_small or segment.is_expandable or size_bytes < _OWN_SEGMENT_FROM_BYTES:
        return False
    first = pieces[0][0]
    return first >= _OWN_SEGMENT_FROM_BYTES or size_bytes != settings.large_segment_bytes


def _pieces(segment: StartSegment) -> Iterator[_Piece]:
    smallest = BLOCK_UNIT_BYTES if segment.is_small else LARGEST_SMALL_BYTES + BLOCK_UNIT_BYTES
    largest = LARGEST_SMALL_BYTES if segment.is_small else sum(size for size, *_ in segment.blocks)
    held: _Piece | None = None
    for size, asked, key in segment.blocks:
        if key >= 0:
            if held is not None:
                yield held
            held = (size, asked, key)
        elif key == UNMAPPED_KEY:
            if held is not None:
                yield held
            held = None
        elif size < smallest and held is not None:
            held = (held[0] + size, held[1], held[2])
        else:
            if held is not None:
                yield held
            held = None
            while size > 0:
                part = min(size, largest)
                yield part, part, -1
                size -= part
    if held is not None:
        yield held
