"""Shows how much memory each source line and each annotation held at one time in a recorded run."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ullage.explaining.analysis.label import UNNAMED, RecordedLabels
from ullage.explaining.analysis.recording import cut, operation_name
from ullage.recorded.allocator.replay import ReplayDevice, State, replay
from ullage.recorded.frame import users_frame
from ullage.recorded.history import PENDING, Action, History
from ullage.recorded.rebuild import program_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of user code: the file, the function, and the line number. The line number is 0 if unknown."""

    file: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """The memory of one source line or annotation, as bytes and as the number of blocks."""

    bytes: int = 0
    blocks: int = 0

    def __add__(self, other: "HeldBytes") -> "HeldBytes":
        return HeldBytes(self.bytes + other.bytes, self.blocks + other.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentHolding:
    """The memory that is allocated at one time, for each source line and annotation. Sizes are in bytes."""

    places: dict[Place, HeldBytes]
    annotations: dict[str, HeldBytes]
    """The allocated bytes by annotation: the label set by the program, or else the innermost open profiler range."""
    allocated_bytes: int
    pending_bytes: int
    """The freed bytes that other CUDA streams may still use."""
    reserved_bytes: int
    segments: int

    @property
    def cached_bytes(self) -> int:
        """The reserved bytes that are free for new allocations."""
        return self.reserved_bytes - self.allocated_bytes - self.pending_bytes


def holding_at_end(histories: Iterable[History]) -> MomentHolding:
    """Return the memory that was allocated when the snapshot was taken, summed over all devices."""
    return _sum([_at_end(history) for history in histories])


def holding_at_peak(histories: Iterable[History], *, semantics: str | None = None) -> MomentHolding:
    """Return the memory at each device's own peak, summed over all devices."""
    return _sum([_at_peak(history, semantics) for history in histories])


def peak_allocated_bytes(history: History, semantics: str | None = None) -> int:
    """Return a device's peak of allocated bytes."""
    rebuilt = program_of(history, semantics=semantics)
    return replay(rebuilt.program, rebuilt.settings, ReplayDevice.of(rebuilt)).peak.allocated_bytes


@dataclass(frozen=True, slots=True)
class _BlockAtMoment:
    bytes: int
    stack: int
    address: int
    # -1 if the block is older than the recording
    row: int


def _at_end(history: History) -> MomentHolding:
    rows = history.action == Action.ALLOC
    row_of = dict(zip(history.address[rows].tolist(), np.flatnonzero(rows).tolist(), strict=True))
    blocks = [block for segment in history.segments for block in segment.blocks]
    return _holding(
        history,
        [
            _BlockAtMoment(block.size, block.stack, block.address, row_of.get(block.address, -1))
            for block in blocks
            if block.state == "active_allocated"
        ],
        pending_bytes=sum(block.size for block in blocks if block.state in PENDING),
        reserved_bytes=history.reserved_bytes,
        segments=len(history.segments),
    )


def _at_peak(history: History, semantics: str | None) -> MomentHolding:
    rebuilt = program_of(history, semantics=semantics)  # The allocated bytes are the same in every allocator version.
    device = ReplayDevice.of(rebuilt)
    peak = replay(rebuilt.program, rebuilt.settings, device).peak_allocated_op
    done = replay(cut(rebuilt.program, max(rebuilt.program.setup, peak + 1)), rebuilt.settings, device)
    alive = done.blocks.state == State.ALLOCATED
    columns = (done.blocks.size, done.blocks.address, done.blocks.key)
    held = zip(*(column[alive].tolist() for column in columns), strict=True)
    return _holding(
        history,
        [
            _BlockAtMoment(size, int(rebuilt.stack_of_key[key]), address, int(rebuilt.row_of_key[key]))
            if key >= 0
            else _BlockAtMoment(size, -1, address, -1)
            for size, address, key in held
        ],
        pending_bytes=done.now.active_bytes - done.now.allocated_bytes,
        reserved_bytes=done.now.reserved_bytes,
        segments=len(np.unique(done.blocks.segment)),
    )


def _holding(
    history: History, blocks: Sequence[_BlockAtMoment], *, pending_bytes: int, reserved_bytes: int, segments: int
) -> MomentHolding:
    labels = RecordedLabels(history)
    stacks: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    named: defaultdict[str, list[int]] = defaultdict(list)
    for block in blocks:
        stacks[block.stack, block.row < 0].append(block.bytes)
        named[labels.of_block(block.row, block.address)].append(block.bytes)
    places: defaultdict[Place, HeldBytes] = defaultdict(HeldBytes)
    for (stack, is_before), sizes in stacks.items():
        places[_place(history, stack, is_before=is_before)] += HeldBytes(sum(sizes), len(sizes))
    annotations = {name: HeldBytes(sum(sizes), len(sizes)) for name, sizes in named.items()}
    return MomentHolding(
        places=dict(places),
        annotations=annotations if annotations.keys() != {UNNAMED} else {},
        allocated_bytes=sum(block.bytes for block in blocks),
        pending_bytes=pending_bytes,
        reserved_bytes=reserved_bytes,
        segments=segments,
    )


def _place(history: History, stack: int, *, is_before: bool) -> Place:
    frames = history.stacks.frames_of(stack)
    frame = users_frame(frames)
    if frame is not None:
        return Place(file="/".join(frame.file.replace("\\", "/").split("/")[-2:]), function=frame.name, line=frame.line)
    if stack >= 0:
        return Place(file=operation_name(frames), function="", line=0)
    is_told = is_before and len(history)
    return Place(file="(before recording began)" if is_told else "(no stack was recorded)", function="", line=0)


def _sum(holdings: Sequence[MomentHolding]) -> MomentHolding:
    places: defaultdict[Place, HeldBytes] = defaultdict(HeldBytes)
    annotations: defaultdict[str, HeldBytes] = defaultdict(HeldBytes)
    is_named = any(holding.annotations for holding in holdings)
    for holding in holdings:
        for place, held in holding.places.items():
            places[place] += held
        everything = {UNNAMED: sum(holding.places.values(), HeldBytes())}
        for name, held in (holding.annotations or everything).items() if is_named else ():
            annotations[name] += held
    return MomentHolding(
        places=dict(places),
        annotations=dict(annotations),
        allocated_bytes=sum(holding.allocated_bytes for holding in holdings),
        pending_bytes=sum(holding.pending_bytes for holding in holdings),
        reserved_bytes=sum(holding.reserved_bytes for holding in holdings),
        segments=sum(holding.segments for holding in holdings),
    )
