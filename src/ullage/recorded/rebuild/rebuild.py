"""Reconstructs the allocator operations of a recorded run from its trace entries.

A snapshot contains no torch version, no capacity, no `record_stream` calls and no `empty_cache` calls. Each of them is
inferred from the entries, or given by the caller, and named in `Rebuilt.notes`:

* If a block is freed and becomes available later, other streams used it until then.
* If segments are freed before an allocation that would not have fitted without that, the allocator freed them; all
  other segments were freed by `empty_cache`.
* If a block is freed, or exists at the end, without having been allocated, it existed before recording began.
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
from ullage.recorded.release import Release
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
    """The allocator operations that ullage reconstructed from a recording, and the recorded event of each operation."""

    program: Program
    settings: Settings
    settings_text: str
    """The allocator settings as a value for PYTORCH_CUDA_ALLOC_CONF."""
    room_bytes: int
    """The most bytes that the allocator can reserve. It is `UNBOUNDED_BYTES` if unknown."""
    beyond_room_bytes: int
    """The GPU memory that the allocator cannot reserve, in bytes. CUDA contexts and other processes use it."""
    room_is_known: bool
    """Whether the allocator's memory capacity is known from a failed allocation."""
    row_of_op: Column
    """The index of the trace entry from which each operation was reconstructed, or -1."""
    row_of_key: Column
    """The index of the trace entry that allocated each block, or -1 if the block is older than the recording."""
    stack_of_key: Column
    size_of_key: Column
    """The requested bytes of each block, by block ID."""
    recorded_calls: Mapping[int, tuple[tuple[str, int], ...]]
    """The recorded driver calls of each operation. "take" allocates driver memory, and "give" frees it."""
    is_whole: bool
    """Whether recording began before the process's first allocation."""
    lives: SegmentLives
    """The creation and the free of each segment."""
    block_lives: BlockLives
    """The trace entries at the address of each block, in order."""
    notes: tuple[str, ...]

    def ops_of(self, rows: Column) -> Column:
        """Return the operations that come from the given trace entries, which must be sorted."""
        first, last = np.searchsorted(self.row_of_op, rows), np.searchsorted(self.row_of_op, rows, side="right")
        counts = last - first
        return np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())


def settings_text_of(history: History, *, alloc_conf: str | None, semantics: str) -> str:
    """Return the allocator settings of a recorded run as a value for PYTORCH_CUDA_ALLOC_CONF.

    Args:
        history: the recording, whose own settings are used if `alloc_conf` is None. The recorded values replace the
            recorded text if the text has an option that is not modelled.
        alloc_conf: the settings, if the user knows them.
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
    """Reconstruct the allocator operations of a recorded run.

    Args:
        history: the recording of one device.
        semantics: the allocator's version, which snapshots do not record: one of `settings.SEMANTICS`; None: the
            usual version of those that the keys of the file allow is assumed, and a note says so.
        alloc_conf: the allocator settings of the run, if the snapshot does not record them.
        capacity_bytes: the most bytes that the allocator could reserve; None: inferred from an out-of-memory entry, if
            any.
        unrecorded: assumptions about facts that the history does not record.

    Raises:
        SettingsError: `alloc_conf` cannot be read.
    """
    return Rebuilder(history).program_of(
        semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes, unrecorded=unrecorded
    )


@dataclass(slots=True)
class Rebuilder:
    """Reconstructs the allocator operations of a recorded run for several PyTorch versions.

    It caches its last result.
    """

    history: History
    _last: tuple[tuple[Settings, int | None, Unrecorded], Rebuilt] | None = None

    def program_of(
        self,
        *,
        semantics: str | None = None,
        alloc_conf: str | None = None,
        capacity_bytes: int | None = None,
        unrecorded: Unrecorded | None = None,
    ) -> Rebuilt:
        """Return the reconstructed operations of this recording."""
        version, assumed = semantics or self.history.release.usual, unrecorded or Unrecorded()
        text = settings_text_of(self.history, alloc_conf=alloc_conf, semantics=version)
        settings = parse_settings(text, semantics=version)
        # The rounding of sizes, and the segment of each block, are the same in every version.
        made_of = replace(settings, semantics=USUAL), capacity_bytes, assumed
        if self._last is None or self._last[0] != made_of:
            self._last = None  # Only one program is kept.
            self._last = made_of, _reconstructed(self.history, settings, capacity_bytes, assumed)
        made = self._last[1]
        version_note = () if semantics is not None else (_version_note(self.history.release),)
        notes = (*version_note, *_capacity_notes(made.room_bytes, capacity_bytes))
        return replace(made, settings=settings, settings_text=text, notes=notes)


def _reconstructed(history: History, settings: Settings, capacity_bytes: int | None, unrecorded: Unrecorded) -> Rebuilt:
    lives = BlockLives.of(history)
    before = Before.of(history, lives, settings, unrecorded)
    held = _held_over_time(history, before, settings)
    known_room = _room_of(history, held)
    room = capacity_bytes if capacity_bytes is not None else known_room or UNBOUNDED_BYTES
    # If the given capacity is below the run's, the run was recorded on another GPU, and its frees under memory pressure
    # do not apply.
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


def _version_note(release: Release) -> str:
    shown = f", and its keys are those of torch {release.text}" if release.text else ""
    return f"torch {release.usual} is assumed; a snapshot does not record its version{shown} (--torch-version)"


def _capacity_notes(room_bytes: int, capacity_bytes: int | None) -> Iterator[str]:
    if room_bytes == UNBOUNDED_BYTES:
        yield "the capacity is unknown: no request failed, and no capacity was given (--capacity)"
    elif capacity_bytes is None:
        yield f"the capacity is {text_of_bytes(room_bytes)}, as the failed request shows"


# The driver gives whole pages. So a large segment of an odd size (large_segment_size_mb:33) takes more memory than its
# size, and so does each page of that size in an expandable segment.
def _held_over_time(history: History, before: Before, settings: Settings) -> Column:
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


# The capacity is what the driver had given when a request failed, plus the bytes that it reported free.
def _room_of(history: History, held: Column) -> int | None:
    failed = np.flatnonzero(history.action == Action.OOM)
    if not len(failed):
        return None
    return int(held[failed[-1]] + history.address[failed[-1]])
