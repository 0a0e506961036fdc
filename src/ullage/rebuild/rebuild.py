"""Make a program of a history: what was asked of the allocator, out of what it recorded.

A snapshot holds no torch version, no capacity, no `record_stream` and no `empty_cache`. Each is told from what it
shows, or given, and named in `Rebuilt.notes`:

* a block that is freed and comes back later had uses on another stream until then;
* segments that are given back before an allocation that would not have fitted beside them were given back by the
  allocator itself, to make room; others by `empty_cache`;
* what was alive before recording began is what is freed, or there at the end, without having been allocated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage._units import text_of_bytes
from ullage.history import Action, History
from ullage.program import Column, Program
from ullage.rebuild.before import Before
from ullage.rebuild.life import GIVEN_BACK, REQUESTS, TAKEN, Lives
from ullage.rebuild.operation import write_operations
from ullage.settings import SEMANTICS, UNLIMITED, Settings, SettingsError, parse_settings

UNBOUNDED_BYTES: Final = 1 << 60
"""Room that is taken where a history does not say how much there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A program, and how it hangs together with the history that it was made of."""

    program: Program
    settings: Settings
    room_bytes: int
    """What the allocator can reserve at most; `UNBOUNDED_BYTES` where that is not known."""
    room_is_told: bool
    """Whether a request that failed told the room: what was reserved, and what the driver said was free."""
    row_of_op: Column
    """Of each operation: the history's entry that it comes from."""
    row_of_key: Column
    """Of each block: the entry that allocated it, -1 where it was there before."""
    stack_of_key: Column
    size_of_key: Column
    """Bytes asked for."""
    recorded_calls: Mapping[int, tuple[tuple[str, int], ...]]
    """What the allocator took from the driver ("take") and gave back ("give") at an operation, in bytes."""
    is_whole: bool
    """Whether the recording began with the process: nothing was there before."""
    notes: tuple[str, ...]


def settings_of(history: History, *, alloc_conf: str | None, semantics: str) -> Settings:
    """Return the settings under which a history was recorded.

    Args:
        history: whose own settings are read where none are given.
        alloc_conf: the text of PYTORCH_ALLOC_CONF, where the user knows it.
        semantics: "2.11" or "2.15".

    Raises:
        SettingsError: the given text cannot be read.
    """
    if alloc_conf is not None:
        return parse_settings(alloc_conf, semantics=semantics)
    recorded = history.settings.get("PYTORCH_CUDA_ALLOC_CONF") or history.settings.get("PYTORCH_ALLOC_CONF")
    if isinstance(recorded, str):
        try:
            return parse_settings(recorded, semantics=semantics)
        except SettingsError:
            pass  # an option of a version that is not modelled; what it came to stands beside it
    split = history.settings.get("max_split_size", -1)
    threshold = history.settings.get("garbage_collection_threshold", 0.0)
    return Settings(
        semantics=semantics,
        max_split_bytes=split if isinstance(split, int) and split > 0 else UNLIMITED,
        garbage_collection_threshold=float(threshold) if isinstance(threshold, float) else 0.0,
        expandable_segments=bool(history.settings.get("expandable_segments", False)),
    )


def program_of(
    history: History,
    *,
    semantics: str | None = None,
    alloc_conf: str | None = None,
    capacity_bytes: int | None = None,
) -> Rebuilt:
    """Make a program of a history.

    Args:
        history: of one device.
        semantics: the allocator's version, which no snapshot tells: "2.11" (and before) or "2.15"; None: "2.11" is
            taken, and a note says so.
        alloc_conf: the settings in force, where the snapshot does not tell them.
        capacity_bytes: what the allocator could reserve at most; told from an out-of-memory entry where there is one.

    Raises:
        SettingsError: `alloc_conf` cannot be read.
    """
    settings = settings_of(history, alloc_conf=alloc_conf, semantics=semantics or SEMANTICS[0])
    notes = []
    if semantics is None:
        notes.append(
            f"the allocator is taken for that of torch {SEMANTICS[0]}; a snapshot does not say (--torch-version)"
        )
    lives = Lives.of(history)
    before = Before.of(history, lives)
    reserved = _reserved_over_time(
        history, sum(sum(size for size, *_ in segment.blocks) for segment in before.segments)
    )
    told = _room_of(history, reserved)
    room = capacity_bytes if capacity_bytes is not None else told or UNBOUNDED_BYTES
    if room == UNBOUNDED_BYTES:
        notes.append("the capacity is not known: no request failed, and none was given (--capacity)")
    elif capacity_bytes is None:
        notes.append(f"the allocator could reserve {text_of_bytes(room)}: told by a request that failed")
    # Where less was given than the run had, it was recorded elsewhere: what was given back there tells nothing of here.
    held = capacity_bytes if capacity_bytes and capacity_bytes >= reserved.max(initial=0) else UNBOUNDED_BYTES
    written = write_operations(history, lives, before, reserved, told or held)
    made = np.flatnonzero(np.isin(history.action, REQUESTS))
    none = np.full(len(before.requested), -1, np.int64)
    return Rebuilt(
        program=Program(
            op=written.op,
            key=written.key,
            size=written.size,
            stream=written.stream,
            start=before.segments,
            recorded_addresses=tuple(history.address[history.action == Action.SEGMENT_ALLOC].tolist()),
        ),
        settings=settings,
        room_bytes=room,
        room_is_told=capacity_bytes is None and room < UNBOUNDED_BYTES,
        row_of_op=written.row,
        row_of_key=np.concatenate([none, made]),
        stack_of_key=np.concatenate([np.array(before.stacks, np.int64), history.stack[made]]),
        size_of_key=np.concatenate([np.array(before.requested, np.int64), history.size[made]]),
        recorded_calls=written.calls,
        is_whole=not before.segments,
        notes=tuple(notes),
    )


def _reserved_over_time(history: History, at_start: int) -> Column:
    """Reserved bytes after every entry."""
    sign = np.isin(history.action, TAKEN).astype(np.int64) - np.isin(history.action, GIVEN_BACK).astype(np.int64)
    return np.asarray(at_start + np.cumsum(sign * history.size), np.int64)


def _room_of(history: History, reserved: Column) -> int | None:
    """What can be reserved: what was, when a request failed, and what the driver said was free then."""
    failed = np.flatnonzero(history.action == Action.OOM)
    if not len(failed):
        return None
    return int(reserved[failed[-1]] + history.address[failed[-1]])
