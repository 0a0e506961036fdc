"""Make a program of a history: what was asked of the allocator, out of what it recorded.

A snapshot holds no torch version, no capacity, no `record_stream` and no `empty_cache`. Each is told from what it
shows, or given, and named in `Rebuilt.notes`:

* a block that is freed and comes back later had uses on another stream until then;
* segments that are given back before an allocation that would not have fitted beside them were given back by the
  allocator itself, to make room; others by `empty_cache`;
* what was alive before recording began is what is freed, or there at the end, without having been allocated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ullage._units import MIB, text_of_bytes
from ullage.history import Action, History, Segment
from ullage.program import Column, Op, Program, StartSegment
from ullage.settings import UNLIMITED, Settings, SettingsError, parse_settings

UNBOUNDED_BYTES: Final = 1 << 40
"""Room that is taken where a history does not say how much there is."""
_GIVEN_BACK: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_TAKEN: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_OTHER_STREAM: Final = 0x7F0000000000  # streams of our own, that stand for those that still use a freed block


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


@dataclass(slots=True)
class _Writer:
    """The program so far."""

    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    row_of_op: list[int] = field(default_factory=list)
    row_of_key: list[int] = field(default_factory=list)
    stack_of_key: list[int] = field(default_factory=list)
    size_of_key: list[int] = field(default_factory=list)

    def add(self, row: int, op: Op, *, key: int = 0, size: int = 0, stream: int = 0) -> None:
        self.rows.append((op, key, size, stream))
        self.row_of_op.append(row)

    def key(self, row: int, stack: int, size: int) -> int:
        self.row_of_key.append(row)
        self.stack_of_key.append(stack)
        self.size_of_key.append(size)
        return len(self.row_of_key) - 1


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
    semantics: str = "2.11",
    alloc_conf: str | None = None,
    capacity_bytes: int | None = None,
) -> Rebuilt:
    """Make a program of a history.

    Args:
        history: of one device.
        semantics: the allocator's version, which no snapshot tells: "2.11" (and before) or "2.15".
        alloc_conf: the settings in force, where the snapshot does not tell them.
        capacity_bytes: what the allocator could reserve at most; told from an out-of-memory entry where there is one.

    Raises:
        SettingsError: `alloc_conf` cannot be read.
    """
    settings = settings_of(history, alloc_conf=alloc_conf, semantics=semantics)
    notes = [f"the allocator is taken for that of torch {semantics}; a snapshot does not say (--torch-version)"]
    writer = _Writer()
    live: dict[int, int] = {}
    start = _start_of(history, writer, live)
    reserved = _reserved_over_time(history, sum(sum(size for size, *_ in segment.blocks) for segment in start))
    room = capacity_bytes or _room_of(history, reserved)
    if room is None:
        room = UNBOUNDED_BYTES
        notes.append("the capacity is not known: no request failed, and none was given (--capacity)")
    elif capacity_bytes is None:
        notes.append(f"the allocator could reserve {text_of_bytes(room)}: told by a request that failed")
    recorded = _Walk(history, writer, live, reserved, room).run()
    rows = np.array(writer.rows, np.int64).reshape(-1, 4)
    taken = history.action == Action.SEGMENT_ALLOC
    return Rebuilt(
        program=Program(
            op=np.ascontiguousarray(rows[:, 0]),
            key=np.ascontiguousarray(rows[:, 1]),
            size=np.ascontiguousarray(rows[:, 2]),
            stream=np.ascontiguousarray(rows[:, 3]),
            start=start,
            recorded_addresses=tuple(history.address[taken].tolist()),
        ),
        settings=settings,
        room_bytes=room,
        room_is_told=capacity_bytes is None and room < UNBOUNDED_BYTES,
        row_of_op=np.array(writer.row_of_op, np.int64),
        row_of_key=np.array(writer.row_of_key, np.int64),
        stack_of_key=np.array(writer.stack_of_key, np.int64),
        size_of_key=np.array(writer.size_of_key, np.int64),
        recorded_calls=recorded,
        is_whole=not start,
        notes=tuple(notes),
    )


def _reserved_over_time(history: History, at_start: int) -> Column:
    """Reserved bytes after every entry."""
    sign = np.isin(history.action, _TAKEN).astype(np.int64) - np.isin(history.action, _GIVEN_BACK).astype(np.int64)
    return np.asarray(at_start + np.cumsum(sign * history.size), np.int64)


def _room_of(history: History, reserved: Column) -> int | None:
    """What can be reserved: what was, when a request failed, and what the driver said was free then."""
    failed = np.flatnonzero(history.action == Action.OOM)
    if not len(failed):
        return None
    return int(reserved[failed[-1]] + history.address[failed[-1]])


class _Walk:
    """Goes through the entries once."""

    def __init__(self, history: History, writer: _Writer, live: dict[int, int], reserved: Column, room: int) -> None:
        self._history = history
        self._writer = writer
        self._live = live
        self._reserved = reserved.tolist()
        self._room = room
        self._pending: dict[int, int] = {}
        self._idle_streams: list[int] = []
        self._streams = 0
        self._calls: dict[int, tuple[tuple[str, int], ...]] = {}
        self._waiting: list[tuple[str, int]] = []

    def run(self) -> dict[int, tuple[tuple[str, int], ...]]:
        """Write the program; return the driver's calls by operation."""
        history = self._history
        actions, addresses = history.action.tolist(), history.address.tolist()
        sizes, streams, stacks = history.size.tolist(), history.stream.tolist(), history.stack.tolist()
        last = len(actions) - 1
        for row, action in enumerate(actions):
            address, size = addresses[row], sizes[row]
            if action == Action.ALLOC:
                self._before(row, size)
                key = self._writer.key(row, stacks[row], size)
                self._live[address] = key
                self._writer.add(row, Op.ALLOCATE, key=key, size=size, stream=streams[row])
                self._called()
            elif action == Action.FREE_REQUESTED:
                whole = row < last and actions[row + 1] == Action.FREE_COMPLETED and addresses[row + 1] == address
                self._free(row, address, at_once=whole)
            elif action == Action.FREE_COMPLETED:
                stream = self._pending.pop(address, None)
                if stream is not None:
                    self._writer.add(row, Op.COMPLETE, stream=stream)
                    self._idle_streams.append(stream)
                elif address in self._live:  # files before 2023 have one entry for a free
                    self._free(row, address, at_once=True)
            elif action in _TAKEN:
                self._waiting.append(("take", size))
            elif action in _GIVEN_BACK:
                self._waiting.append(("give", size))
            elif action == Action.OOM:
                self._before(row, size)
                key = self._writer.key(row, stacks[row], size)
                self._writer.add(row, Op.ALLOCATE, key=key, size=size, stream=streams[row])
                self._called()
        if self._waiting:
            self._writer.add(last, Op.EMPTY_CACHE)
            self._called()
        return self._calls

    def _called(self) -> None:
        if self._waiting:
            self._calls[len(self._writer.rows) - 1] = tuple(self._waiting)
            self._waiting = []

    def _before(self, row: int, size: int) -> None:
        """Say who gave segments back before this request: the program, or the allocator, because there was no room."""
        given = [index for index, (what, _) in enumerate(self._waiting) if what == "give"]
        if not given:
            return
        taken = sum(size for what, size in self._waiting if what == "take") or size
        before = self._reserved[row] + sum(size if what == "give" else -size for what, size in self._waiting)
        if before + taken > self._room:
            return
        after = given[-1] + 1
        later, self._waiting = self._waiting[after:], self._waiting[:after]
        self._writer.add(row, Op.EMPTY_CACHE)
        self._called()
        self._waiting = later

    def _free(self, row: int, address: int, *, at_once: bool) -> None:
        key = self._live.pop(address, None)
        if key is None:
            return
        if not at_once:
            if not self._idle_streams:
                self._streams += 1
                self._idle_streams.append(_OTHER_STREAM + self._streams)
                self._writer.add(row, Op.HOLD, stream=self._idle_streams[-1])
            stream = self._pending[address] = self._idle_streams.pop()
            self._writer.add(row, Op.RECORD_STREAM, key=key, stream=stream)
        self._writer.add(row, Op.FREE, key=key)


# ---- what was there before


def _start_of(history: History, writer: _Writer, live: dict[int, int]) -> tuple[StartSegment, ...]:
    """The segments and blocks that were there when recording began; fills `live`."""
    alive, segments = _before_recording(history)
    found = []
    for segment in sorted(segments.values(), key=lambda segment: segment.address):
        inside = sorted(
            (address, size, asked, stack)
            for address, (size, asked, stack) in alive.items()
            if segment.address <= address < segment.address + segment.size
        )
        blocks: list[tuple[int, int, int]] = []
        at = segment.address
        for address, size, asked, stack in inside:
            if address > at:
                blocks.append((address - at, 0, -1))
            end = min(address + size, segment.address + segment.size)
            if end <= max(address, at):
                continue
            key = writer.key(-1, stack, asked)
            live[address] = key
            blocks.append((end - address, asked, key))
            at = end
        if at < segment.address + segment.size:
            blocks.append((segment.address + segment.size - at, 0, -1))
        found.append(
            StartSegment(
                address=segment.address,
                stream=segment.stream,
                is_small=not segment.is_large,
                is_expandable=segment.is_expandable,
                blocks=tuple(blocks),
            )
        )
    return tuple(found)


def _before_recording(history: History) -> tuple[dict[int, tuple[int, int, int]], dict[int, Segment]]:
    """Blocks (bytes, bytes asked for, stack) and segments, by address, that no entry made."""
    alive: dict[int, tuple[int, int, int]] = {}
    segments: dict[int, Segment] = {}
    made: set[int] = set()
    taken: set[int] = set()
    rows = zip(history.action.tolist(), history.address.tolist(), history.size.tolist(), strict=True)
    for row, (action, address, size) in enumerate(rows):
        if action == Action.ALLOC:
            made.add(address)
        elif action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            if address not in made and address not in alive:
                alive[address] = (-(-size // 512) * 512, size, -1)
        elif action in _TAKEN:
            taken.add(address)
        elif action in _GIVEN_BACK and address not in taken and address not in segments:
            segments[address] = Segment(
                address=address,
                size=size,
                stream=int(history.stream[row]),
                is_large=size != 2 * MIB,
                is_expandable=action == Action.SEGMENT_UNMAP,
                pool=0,
                blocks=(),
            )
    for segment in history.segments:
        if segment.address not in taken and segment.address not in segments:
            segments[segment.address] = segment
        for block in segment.blocks:
            if block.state.startswith("active") and block.address not in made:
                alive[block.address] = (block.size, block.requested, block.stack)
    return alive, segments
