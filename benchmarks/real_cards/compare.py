"""Two recordings of one program, on a real card and on the emulated one, compared event by event and block by block.

Addresses are not compared as such: where a driver puts a segment is its own. Events are compared by what was done and
how many bytes, in order; a free of another block of the same size is said, and is no difference by itself. Where
autocast frees its copies of weights, as the recorded stacks tell, their order is said and does not count: it is that of
PyTorch's table of copies, whose key is the address of each weight's object on the host, another one in every process.
Segments of the end are compared by size, by stream, and by every block in order: its size, its state, and the
allocation that it came from. Peaks come from running what was recorded through the allocator core, which is told what
lay where when the recording began, and from then on only where the driver put each segment; `places` says how many
allocations it puts where they were recorded, and only where that is all of them is a peak beyond doubt.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Final

import numpy as np

from benchmarks.real_cards.case import Figure, Share
from ullage.recorded.allocator.replay import ReplayDevice, replay
from ullage.recorded.history import Action, Frame, History, SnapshotBlock
from ullage.recorded.rebuild import program_of

_COMPARED: Final = tuple(action for action in Action if action not in (Action.SNAPSHOT, Action.OTHER))
_FREES: Final = (Action.FREE_REQUESTED, Action.FREE_COMPLETED)

Event = tuple[int, int, int]
"""What was done, how many bytes, and of a block the number of the allocation that made it (-1: before recording)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The most at once, in bytes."""

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    places: Share
    """Allocations that the core puts where they were recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What is equal of two recordings."""

    events: Share
    segments: Share
    places: Share
    """Allocations of the real recording that the core puts where the real card did, told where its segments lay."""
    figures: dict[str, Figure]
    differs: str
    """The first thing that does, in words; empty where nothing does."""


def compared(real: History, emulated: History) -> Compared:
    """Compare a recording from a real card with one from the emulated card."""
    recorded = events_of(real), events_of(emulated)
    events = tidied(recorded[0], clears_of(real)), tidied(recorded[1], clears_of(emulated))
    ends = forms_of(real), forms_of(emulated)
    peaks = peaks_of(real), peaks_of(emulated)
    names = ("requested peak", "allocated peak", "reserved peak")
    fields = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    figures = {
        name: Figure(published=getattr(peaks[0], part), emulated=getattr(peaks[1], part))
        for name, part in zip(names, fields, strict=True)
    }
    shared = (ends[0] & ends[1]).total()
    share = Share(equal=equal_events(*events), of=max(len(events[0]), len(events[1])))
    return Compared(
        events=share,
        segments=Share(equal=shared, of=max(ends[0].total(), ends[1].total())),
        places=peaks[0].places,
        figures=figures,
        differs="; ".join([*_reordered(recorded, events), *_differences(*events, *ends, *peaks)]),
    )


def events_of(history: History) -> list[Event]:
    """Return what was done, in order, without addresses."""
    return _events_and_blocks(history)[0]


def _events_and_blocks(history: History) -> tuple[list[Event], dict[int, int]]:
    """Return the events, and of every block that is there at the end the number of the one that made it, by address."""
    made: dict[int, int] = {}
    events: list[Event] = []
    rows = zip(history.action.tolist(), history.address.tolist(), history.size.tolist(), strict=True)
    for action, address, size in rows:
        if action not in _COMPARED:
            continue
        number = -1
        if action == Action.ALLOC:
            number = made[address] = len(events)
        elif action in _FREES:
            number = made.get(address, -1)
            if action == Action.FREE_COMPLETED:
                made.pop(address, None)
        events.append((action, size, number))
    return events, made


def clears_of(history: History) -> list[bool]:
    """Return of every event whether autocast freed a copy of its cache in it, as the event's stack tells."""
    compared_rows = np.isin(history.action, _COMPARED)
    stacks, actions = history.stack[compared_rows], history.action[compared_rows]
    is_free = np.isin(actions, _FREES)
    known = {
        int(stack): any(map(_clears, history.stacks.frames_of(int(stack)))) for stack in np.unique(stacks[is_free])
    }
    return [bool(free) and known[stack] for free, stack in zip(is_free, stacks.tolist(), strict=True)]


def _clears(frame: Frame) -> bool:
    """Whether a frame is of clearing autocast's cache: in C++, or the end of its `with` in Python."""
    in_python = frame.name == "__exit__" and frame.file.replace("\\", "/").endswith("torch/amp/autocast_mode.py")
    return in_python or frame.name.startswith("at::autocast::clear_cache(")


def tidied(events: Sequence[Event], clears: Sequence[bool]) -> list[Event]:
    """Return the events with what autocast frees at once in the order in which it was allocated."""
    found: list[Event] = []
    for is_clear, some in groupby(zip(events, clears, strict=True), key=lambda pair: pair[1]):
        run = [event for event, _ in some]
        found += sorted(run, key=_by_block) if is_clear else run
    return found


def _by_block(event: Event) -> tuple[int, int, int]:
    action, size, number = event
    return number, size, action


def equal_events(real: Sequence[Event], emulated: Sequence[Event]) -> int:
    """Return how many are equal in order: up to the first that differs and, of equally many, all that are equal."""
    if len(real) == len(emulated):
        return sum(one[:2] == other[:2] for one, other in zip(real, emulated, strict=True))
    return sum(1 for _ in takewhile(lambda pair: pair[0][:2] == pair[1][:2], zip(real, emulated, strict=False)))


Form = tuple[int, int, bool, bool, tuple[tuple[int, str, int, int], ...]]


def forms_of(history: History) -> Counter[Form]:
    """Return the segments by what is compared of them: size, stream, pool, and of each block what is in it."""
    segments = history.segments
    streams = {stream: number for number, stream in enumerate(sorted({segment.stream for segment in segments}))}
    made = _events_and_blocks(history)[1]
    return Counter(
        (
            segment.size,
            streams[segment.stream],
            segment.is_large,
            segment.is_expandable,
            tuple(_block_of(block, made.get(block.address, -1)) for block in segment.blocks),
        )
        for segment in segments
    )


def _block_of(block: SnapshotBlock, number: int) -> tuple[int, str, int, int]:
    """Return what is compared of a block; of one that is free, what it was does not count."""
    in_use = block.state != "inactive"
    return block.size, block.state, block.requested if in_use else 0, number if in_use else -1


def peaks_of(history: History) -> Peaks:
    """Run what was recorded through the allocator core, which is told the recorded addresses of segments."""
    rebuilt = program_of(history)
    done = replay(rebuilt.program, rebuilt.settings, ReplayDevice(total_bytes=rebuilt.room_bytes), places=True)
    assert done.places is not None
    rows = rebuilt.row_of_op
    known = (done.places.address >= 0) & (rows >= 0)
    placed = np.count_nonzero(done.places.address[known] == history.address[rows[known]])
    return Peaks(
        requested_bytes=done.peak.requested_bytes,
        allocated_bytes=done.peak.allocated_bytes,
        reserved_bytes=done.peak.reserved_bytes,
        places=Share(equal=int(placed), of=int(np.count_nonzero(known))),
    )


def _reordered(
    recorded: tuple[Sequence[Event], Sequence[Event]], tidy: tuple[Sequence[Event], Sequence[Event]]
) -> list[str]:
    """Say how many events are equal only since the order of autocast's frees does not count."""
    freed = sum(
        one[1:] != other[1:] and now == then and one[0] == Action.FREE_COMPLETED
        for one, other, now, then in zip(*recorded, *tidy, strict=False)
    )
    return [f"{freed:,} of autocast's copies of weights are freed in another order"] if freed else []


def _differences(
    real: Sequence[Event],
    emulated: Sequence[Event],
    real_end: Counter[Form],
    emulated_end: Counter[Form],
    real_peaks: Peaks,
    emulated_peaks: Peaks,
) -> list[str]:
    """Say the first thing that differs of each kind."""
    found = []
    for row, (one, other) in enumerate(zip(real, emulated, strict=False)):
        if one != other:
            found.append(f"event {row} is {_text(one)}, but in the emulation {_text(other)}")
            break
    else:
        if len(real) != len(emulated):
            found.append(f"{len(real):,} events, emulated {len(emulated):,}")
    only = list((real_end - emulated_end).elements())
    if only:
        size, *_, blocks = only[0]
        found.append(f"{len(only):,} segments differ, the first has {size:,} bytes and {len(blocks)} blocks")
    for which, peaks in (("real", real_peaks), ("emulated", emulated_peaks)):
        if not peaks.places.is_whole:
            elsewhere = peaks.places.of - peaks.places.equal
            found.append(f"a replay of the {which} recording places {elsewhere:,} allocations at other addresses")
    return found


def _text(event: Event) -> str:
    action, size, number = event
    block = f" of the block that event {number} made" if Action(action) in _FREES and number >= 0 else ""
    return f"{Action(action).name.lower()} of {size:,} bytes{block}"
