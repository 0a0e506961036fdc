"""Reconstruction of a program from a history: the requests to the allocator behind what it recorded.

A snapshot holds no torch version, no capacity, no `record_stream` and no `empty_cache`. Each is told from what it
shows, or given, and named in `Rebuilt.notes`:

* a block that is freed and comes back later had uses on another stream until then;
* segments that are given back before an allocation that would not have fitted beside them were given back by the
  allocator itself, to make room; others by `empty_cache`;
* what was alive before recording began is what is freed, or there at the end, without having been allocated.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ullage.base.units import text_of_bytes
from ullage.recorded.history import Action, History
from ullage.recorded.program import Column, Program, is_one_of
from ullage.recorded.rebuild.before import Before, Unrecorded
from ullage.recorded.rebuild.life import GIVEN_BACK, REQUESTS, TAKEN, BlockLives
from ullage.recorded.rebuild.operation import UNBOUNDED_BYTES, whole_pages, write_operations
from ullage.recorded.rebuild.segment_life import SegmentLives
from ullage.recorded.settings import (
    UNLIMITED,
    USUAL,
    Settings,
    SettingsError,
    parse_settings,
    recorded_settings,
    text_of_settings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """A program and its relation to the history that it was reconstructed from."""

    program: Program
    settings: Settings
    settings_text: str
    """The text of these settings, for PYTORCH_CUDA_ALLOC_CONF: given, recorded, or written from what was recorded."""
    room_bytes: int
    """The most bytes that the allocator can reserve; `UNBOUNDED_BYTES` where that is not known."""
    beyond_room_bytes: int
    """The memory that the card has beyond the room, where that was assumed."""
    room_is_known: bool
    """Whether the room is known from a request that failed: reserved bytes plus what the driver reported free."""
    row_of_op: Column
    """The history's entry behind each operation; -1 for those that bring about the state at the beginning."""
    row_of_key: Column
    """The entry that allocated each block; -1 where the block was there before."""
    stack_of_key: Column
    size_of_key: Column
    """Bytes asked for, by block."""
    recorded_calls: Mapping[int, tuple[tuple[str, int], ...]]
    """Driver calls by operation: memory taken ("take") and given back ("give"), in bytes."""
    is_whole: bool
    """Whether recording began before the first allocation."""
    lives: SegmentLives
    """The segments of the recording, each from its first memory to its last."""
    block_lives: BlockLives
    """The entries of each block's place, in order."""
    notes: tuple[str, ...]

    def ops_of(self, rows: Column) -> Column:
        """Return the operations behind entries, which are given in order."""
        first, last = np.searchsorted(self.row_of_op, rows), np.searchsorted(self.row_of_op, rows, side="right")
        counts = last - first
        return np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


def settings_text_of(history: History, *, alloc_conf: str | None, semantics: str) -> str:
    """Return the settings under which a history was recorded, as a text for PYTORCH_CUDA_ALLOC_CONF.

    Args:
        history: whose own settings are taken where none are given: their text, or what it came to where the text has an
            option that is not modelled.
        alloc_conf: the text, where the user knows it.
        semantics: one of `ullage.recorded.settings.SEMANTICS`.
    """
    if alloc_conf is not None:
        return alloc_conf
    recorded = recorded_settings(history.settings)
    if recorded is not None:
        try:
            parse_settings(recorded, semantics=semantics)
        except SettingsError:
            pass
        else:
            return recorded
    split = history.settings.get("max_split_size", -1)
    threshold = history.settings.get("garbage_collection_threshold", 0.0)
    return text_of_settings(
        Settings(
            semantics=semantics,
            max_split_bytes=split if isinstance(split, int) and split > 0 else UNLIMITED,
            garbage_collection_threshold=threshold if isinstance(threshold, float) and 0 < threshold < 1 else 0.0,
            expandable_segments=history.settings.get("expandable_segments") is True,
        )
    )


def program_of(
    history: History,
    *,
    semantics: str | None = None,
    alloc_conf: str | None = None,
    capacity_bytes: int | None = None,
    unrecorded: Unrecorded | None = None,
) -> Rebuilt:
    """Reconstruct the program of a history.

    Args:
        history: the recording of one device.
        semantics: the allocator's version, which no snapshot tells: one of `settings.SEMANTICS`; None: the
            usual one is taken, and a note says so.
        alloc_conf: the settings in force, where the snapshot does not record them.
        capacity_bytes: what the allocator could reserve at most; None: inferred from an out-of-memory entry, if any.
        unrecorded: what is assumed of what the history does not say.

    Raises:
        SettingsError: `alloc_conf` cannot be read.
    """
    return Rebuilder(history).program_of(
        semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes, unrecorded=unrecorded
    )


@dataclass(slots=True)
class Rebuilder:
    """Reconstructs programs of one history, and keeps the last: most versions differ in nothing that a program has."""

    history: History
    _last: tuple[tuple[Settings, int | None, Unrecorded], Rebuilt] | None = None
    """The last one, and what it was made of."""

    def program_of(
        self,
        *,
        semantics: str | None = None,
        alloc_conf: str | None = None,
        capacity_bytes: int | None = None,
        unrecorded: Unrecorded | None = None,
    ) -> Rebuilt:
        """Do as the function of this name."""
        version, assumed = semantics or USUAL, unrecorded or Unrecorded()
        text = settings_text_of(self.history, alloc_conf=alloc_conf, semantics=version)
        settings = parse_settings(text, semantics=version)
        # How sizes are rounded, and what a segment has, is the same in every version.
        made_of = replace(settings, semantics=USUAL), capacity_bytes, assumed
        if self._last is None or self._last[0] != made_of:
            self._last = None  # one program at a time
            self._last = made_of, _reconstructed(self.history, settings, capacity_bytes, assumed)
        made = self._last[1]
        notes = tuple(_notes(semantics, made.room_bytes, capacity_bytes))
        return replace(made, settings=settings, settings_text=text, notes=notes)


def _reconstructed(history: History, settings: Settings, capacity_bytes: int | None, unrecorded: Unrecorded) -> Rebuilt:
    """Return what `Rebuilder` completes: without a text of the settings, and without notes."""
    lives = BlockLives.of(history)
    before = Before.of(history, lives, settings, unrecorded)
    held = _held_over_time(history, before, settings)
    known_room = _room_of(history, held)
    room = capacity_bytes if capacity_bytes is not None else known_room or UNBOUNDED_BYTES
    # Where less was given than the run had, it was recorded elsewhere: what was given back there tells nothing of here.
    had = capacity_bytes if capacity_bytes and capacity_bytes >= held.max(initial=0) else UNBOUNDED_BYTES
    written = write_operations(history, lives, before, held, known_room or had, unrecorded)
    made = np.flatnonzero(is_one_of(history.action, REQUESTS))
    none = np.full(len(before.requested), -1, np.int64)
    return Rebuilt(
        program=Program(
            op=written.op,
            key=written.key,
            size=written.size,
            stream=written.stream,
            start=before.segments,
            recorded_addresses=tuple(history.address[history.action == Action.SEGMENT_ALLOC].tolist()),
            setup=int(np.count_nonzero(written.row < 0)),
        ),
        settings=settings,
        settings_text="",
        room_bytes=room,
        beyond_room_bytes=unrecorded.beyond_room_bytes if room < UNBOUNDED_BYTES else 0,
        room_is_known=capacity_bytes is None and room < UNBOUNDED_BYTES,
        row_of_op=written.row,
        row_of_key=np.concatenate([none, made]),
        stack_of_key=np.concatenate([np.array(before.stacks, np.int64), history.stack[made]]),
        size_of_key=np.concatenate([np.array(before.requested, np.int64), history.size[made]]),
        recorded_calls=written.calls,
        is_whole=not before.segments,
        lives=before.lives,
        block_lives=lives,
        notes=(),
    )


def _notes(semantics: str | None, room_bytes: int, capacity_bytes: int | None) -> Iterator[str]:
    """Yield notes about what had to be inferred."""
    if semantics is None:
        yield f"torch {USUAL} is assumed; a snapshot does not record its version (--torch-version)"
    if room_bytes == UNBOUNDED_BYTES:
        yield "the capacity is not known: no request failed, and none was given (--capacity)"
    elif capacity_bytes is None:
        yield f"the allocator could reserve {text_of_bytes(room_bytes)}, as the failed request shows"


def _held_over_time(history: History, before: Before, settings: Settings) -> Column:
    """Return what the driver has given after every entry, in bytes.

    It gives whole pages of its own: a large segment of an odd size (large_segment_size_mb:33) takes more than it has,
    and so does each page of such a size of an expandable one.
    """
    large = settings.large_segment_bytes

    def given(size: Column, is_mapped: npt.NDArray[np.bool_]) -> Column:
        in_pages = size // large * whole_pages(large)
        return np.asarray(np.where(is_mapped & (size % large == 0), in_pages, whole_pages(size)), np.int64)

    sign = is_one_of(history.action, TAKEN).astype(np.int64) - is_one_of(history.action, GIVEN_BACK).astype(np.int64)
    is_mapped = is_one_of(history.action, (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP))
    reserved = np.array([segment.reserved_bytes for segment in before.segments], np.int64)
    is_expandable = np.array([segment.is_expandable for segment in before.segments], np.bool_)
    at_start = int(given(reserved, is_expandable).sum())
    return np.asarray(at_start + np.cumsum(sign * given(history.size, is_mapped)), np.int64)


def _room_of(history: History, held: Column) -> int | None:
    """Return the room: what the driver had given when a request failed, plus what it reported free."""
    failed = np.flatnonzero(history.action == Action.OOM)
    if not len(failed):
        return None
    return int(held[failed[-1]] + history.address[failed[-1]])
