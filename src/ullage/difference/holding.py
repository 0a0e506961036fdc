"""What a recorded run held at one moment, by the user's line and by annotation. It compares nothing."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.allocator.replay import Device, State, replay
from ullage.analysis.recording import cut, users_frame
from ullage.history import Action, History
from ullage.rebuild import program_of

_NUMBER: Final = re.compile(r"#\d+$")  # ProfilerStep#12: every step has a name of its own
UNNAMED: Final = "(no annotation)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of the user's own: the last two parts of its path, and the function; line 0: no line is known."""

    file: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes after rounding, in so many blocks."""

    bytes: int = 0
    blocks: int = 0

    def __add__(self, other: "Held") -> "Held":
        return Held(self.bytes + other.bytes, self.blocks + other.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What was allocated at a moment, summed in two ways, and what the allocator had, in bytes."""

    places: dict[Place, Held]
    annotations: dict[str, Held]
    """By what the program put on its allocations, or the innermost range it was in; empty where it named nothing."""
    allocated_bytes: int
    pending_bytes: int
    """Freed, but other streams may still use it."""
    reserved_bytes: int
    segments: int

    @property
    def cached_bytes(self) -> int:
        """Reserved, and free to be handed out."""
        return self.reserved_bytes - self.allocated_bytes - self.pending_bytes


def holding_at_end(histories: Iterable[History]) -> Holding:
    """Return what was held when the snapshot was taken, on all of the devices together."""
    return _sum([_at_end(history) for history in histories])


def holding_at_peak(histories: Iterable[History], *, semantics: str | None = None) -> Holding:
    """Return what was held when most was allocated, on each device at its own time, by replaying the run."""
    return _sum([_at_peak(history, semantics) for history in histories])


@dataclass(frozen=True, slots=True)
class _Block:
    bytes: int
    stack: int
    row: int
    """The entry that allocated it; -1: it was there before."""


def _at_end(history: History) -> Holding:
    rows = history.action == Action.ALLOC
    row_of = dict(zip(history.address[rows].tolist(), np.flatnonzero(rows).tolist(), strict=True))
    blocks = [block for segment in history.segments for block in segment.blocks]
    return _holding(
        history,
        [
            _Block(block.size, block.stack, row_of.get(block.address, -1))
            for block in blocks
            if block.state == "active_allocated"
        ],
        pending_bytes=sum(block.size for block in blocks if block.state == "active_pending_free"),
        reserved_bytes=history.reserved_bytes,
        segments=len(history.segments),
    )


def _at_peak(history: History, semantics: str | None) -> Holding:
    rebuilt = program_of(history, semantics=semantics)  # what is allocated is the same in every version
    device = Device(total_bytes=rebuilt.room_bytes)
    peak = replay(rebuilt.program, rebuilt.settings, device).peak_allocated_op
    done = replay(cut(rebuilt.program, peak + 1), rebuilt.settings, device)
    alive = done.blocks.state == State.ALLOCATED
    held = zip(done.blocks.size[alive].tolist(), done.blocks.key[alive].tolist(), strict=True)
    return _holding(
        history,
        [
            _Block(size, int(rebuilt.stack_of_key[key]), int(rebuilt.row_of_key[key]))
            if key >= 0
            else _Block(size, -1, -1)
            for size, key in held
        ],
        pending_bytes=done.now.active_bytes - done.now.allocated_bytes,
        reserved_bytes=done.now.reserved_bytes,
        segments=len(np.unique(done.blocks.segment)),
    )


def _holding(
    history: History, blocks: Sequence[_Block], *, pending_bytes: int, reserved_bytes: int, segments: int
) -> Holding:
    place_of: dict[tuple[int, bool], Place] = {}
    annotation_of = _annotation_of(history)
    places: defaultdict[Place, Held] = defaultdict(Held)
    annotations: defaultdict[str, Held] = defaultdict(Held)
    for block in blocks:
        known = (block.stack, block.row < 0)
        if known not in place_of:
            place_of[known] = _place(history, block.stack, is_before=block.row < 0)
        held = Held(block.bytes, 1)
        places[place_of[known]] += held
        annotations[annotation_of(block.row)] += held
    return Holding(
        places=dict(places),
        annotations=dict(annotations) if annotations.keys() != {UNNAMED} else {},
        allocated_bytes=sum(block.bytes for block in blocks),
        pending_bytes=pending_bytes,
        reserved_bytes=reserved_bytes,
        segments=segments,
    )


def _place(history: History, stack: int, *, is_before: bool) -> Place:
    frame = users_frame(history.stacks.frames_of(stack))
    if frame is not None:
        return Place(file="/".join(re.split(r"[\\/]", frame.file)[-2:]), function=frame.name, line=frame.line)
    if stack >= 0:
        return Place(file="(no line of yours)", function="", line=0)
    is_told = is_before and len(history)
    return Place(file="(before recording began)" if is_told else "(no stack was recorded)", function="", line=0)


def _annotation_of(history: History) -> Callable[[int], str]:
    """How to name the entry that allocated a block: by its own metadata, or the innermost range that was open then."""
    labels, times = history.labels, history.time_us
    begins, names = _ranges(history)

    def name(row: int) -> str:
        if row < 0:
            return UNNAMED
        if len(labels.metadata) and labels.metadata[row] >= 0 and labels.texts[int(labels.metadata[row])]:
            return labels.texts[int(labels.metadata[row])]
        at = bisect_right(begins, int(times[row])) - 1
        return names[at] if at >= 0 and times[row] >= 0 else UNNAMED

    return name


def _ranges(history: History) -> tuple[list[int], list[str]]:
    """From which time on which range is the innermost that is open."""
    begins, names, opened = [], [], list[str]()
    for note in sorted(history.annotations, key=lambda note: note.time_us):
        name = _NUMBER.sub("", note.name)
        if note.stage == "START":
            opened.append(name)
        elif name in opened:
            del opened[len(opened) - 1 - opened[::-1].index(name)]
        begins.append(note.time_us)
        names.append(opened[-1] if opened else UNNAMED)
    return begins, names


def _sum(holdings: Sequence[Holding]) -> Holding:
    places: defaultdict[Place, Held] = defaultdict(Held)
    annotations: defaultdict[str, Held] = defaultdict(Held)
    is_named = any(holding.annotations for holding in holdings)
    for holding in holdings:
        for place, held in holding.places.items():
            places[place] += held
        everything = {UNNAMED: sum(holding.places.values(), Held())}
        for name, held in (holding.annotations or everything).items() if is_named else ():
            annotations[name] += held
    return Holding(
        places=dict(places),
        annotations=dict(annotations),
        allocated_bytes=sum(holding.allocated_bytes for holding in holdings),
        pending_bytes=sum(holding.pending_bytes for holding in holdings),
        reserved_bytes=sum(holding.reserved_bytes for holding in holdings),
        segments=sum(holding.segments for holding in holdings),
    )
