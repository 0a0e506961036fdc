"""Collects every memory block of a recorded run for the interactive picture, with its lifetime and source line.

A moment is the state of the allocator after one operation of the program. Moment 0 is the state before the first
operation.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from ullage.base.source_location import is_text, shortened
from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.label import UNNAMED, RecordedLabels, label_holders
from ullage.explaining.analysis.recording import Recording
from ullage.explaining.analysis.role import ROLES, RoleColumns, role_shares
from ullage.recorded.allocator.replay import Call, Calls, Places, ReplayDevice, replay
from ullage.recorded.program import UNMAPPED_KEY, Column, Op, StartSegment, is_one_of
from ullage.recorded.rebuild import UNBOUNDED_BYTES
from ullage.recorded.rebuild.ranges import Ranges
from ullage.recorded.settings import SMALL_SEGMENT_BYTES
from ullage.report.blocks import BlockHistory, Facet, LifeColumns, SegmentColumns, StackColumns

_TITLE: Final = "Memory over the run: every block, from its allocation to its free"
_NEVER: Final = np.iinfo(np.int64).max


def block_history_of(recording: Recording, roles: RoleColumns | None = None) -> BlockHistory:
    """Return the data for drawing the memory blocks and segments of a run. If `roles` is given, the drawing can color
    blocks by role.
    """
    program, rebuilt = recording.program, recording.rebuilt
    done = replay(program, rebuilt.settings, ReplayDevice.of(rebuilt), places=True, calls=True)
    assert done.places is not None
    assert done.calls is not None
    keys, blocks = _lives(recording, done.places)
    moments = len(program) + 1
    stacks, numbers = _stacks(recording, blocks.stack)
    is_failure = recording.failing_op is not None
    matters = recording.failing_op if is_failure else recording.done.peak_allocated_op
    is_limited = rebuilt.room_bytes < UNBOUNDED_BYTES
    return BlockHistory(
        title=_TITLE if len(program) else "The allocator's segments and their blocks when the snapshot was taken",
        event=np.append(0, rebuilt.row_of_op[: len(program)] + 1),
        time_us=_times(recording),
        blocks=LifeColumns(
            born=blocks.born,
            life=np.minimum(blocks.freed, moments) - blocks.born,
            wait=np.minimum(blocks.gone, moments) - np.minimum(blocks.freed, moments),
            size_bytes=blocks.size_bytes,
            address=blocks.address,
            stack=numbers,
        ),
        facets=(
            *_facets(recording, keys, blocks.address),
            *((_roles(recording, roles, keys),) if roles is not None else ()),
        ),
        segments=segments_of(recording, done.calls),
        stacks=stacks,
        step_ends=tuple(op + 1 for op in recording.step_ops()),
        moment=min((matters if matters is not None else -1) + 1, moments - 1),
        moment_label="the request that failed" if is_failure else "the peak",
        moment_remark=_failure(recording),
        limit_bytes=rebuilt.room_bytes if is_limited else None,
        limit_label=f"capacity: {text_of_bytes(rebuilt.room_bytes)}" if is_limited else "",
    )


def _failure(recording: Recording) -> str:
    if recording.failing_op is None:
        return ""
    size = text_of_bytes(int(recording.program.size[recording.failing_op]))
    key = int(recording.program.key[recording.failing_op])
    return f"{size} are requested" + (f" at {recording.line_of(key)}" if recording.stack_of(key) >= 0 else "")


def _times(recording: Recording) -> Column:
    if not len(recording.history):
        return np.zeros(0, np.int64)
    rows = np.maximum(
        recording.rebuilt.row_of_op[: len(recording.program)], 0
    )  # negative values mean "before the first entry"
    times = recording.history.time_us[rows]
    if not len(times) or times.min() < 0:
        return np.zeros(0, np.int64)
    times = np.maximum.accumulate(times)
    return np.asarray(np.append(times[0], times) - times[0], np.int64)


# Times are operation indices.
@dataclass(frozen=True, slots=True)
class _LivesOfKeys:
    born: Column
    freed: Column
    gone: Column
    size_bytes: Column
    address: Column
    stack: Column


def _lives(recording: Recording, places: Places) -> tuple[Column, _LivesOfKeys]:
    program, rebuilt = recording.program, recording.rebuilt
    born, freed, size, address = (np.full(len(rebuilt.size_of_key), value, np.int64) for value in (-1, _NEVER, 0, 0))
    for segment in program.start:
        at = segment.address
        for size_bytes, _, key in segment.blocks:
            if key >= 0:
                born[key], size[key], address[key] = 0, size_bytes, at
            at += size_bytes
    placed = np.flatnonzero(places.address >= 0)
    keys = program.key[placed]
    born[keys], size[keys], address[keys] = placed + 1, places.size_bytes[placed], places.address[placed]
    frees = np.flatnonzero(program.op == Op.FREE)
    freed[program.key[frees]] = frees + 1
    gone = freed.copy()
    for key, moment in _finished(recording):
        gone[key] = max(int(freed[key]), moment)
    keys = np.flatnonzero(born >= 0)
    keys = keys[np.argsort(born[keys], kind="stable")]
    stack = np.where((rebuilt.stack_of_key < 0) & (rebuilt.row_of_key < 0), -2, rebuilt.stack_of_key)
    return keys, _LivesOfKeys(*(column[keys] for column in (born, freed, gone, size, address, stack)))


def _finished(recording: Recording) -> Iterator[tuple[int, int]]:
    program = recording.program
    held: dict[int, int] = {}
    rows = np.flatnonzero(is_one_of(program.op, (Op.RECORD_STREAM, Op.COMPLETE)))
    for row in rows.tolist():
        stream = int(program.stream[row])
        if program.op[row] == Op.RECORD_STREAM:
            held[stream] = int(program.key[row])
        elif stream in held:
            yield held.pop(stream), row + 1
    for key in held.values():
        yield key, _NEVER


def _facets(recording: Recording, keys: Column, addresses: Column) -> Iterator[Facet]:
    rebuilt = recording.rebuilt
    before = (rebuilt.stack_of_key < 0) & (rebuilt.row_of_key < 0)
    stacks, where = np.unique(np.where(before, -2, rebuilt.stack_of_key)[keys], return_inverse=True)
    names = [recording.line_of_stack(stack) for stack in stacks.tolist()]
    held: Counter[str] = Counter()
    for block in recording.held():
        held[block.line] += block.size_bytes
    labels = [name for name, _ in held.most_common()]
    labels += [name for name in dict.fromkeys(names) if name not in held]
    number = {name: index for index, name in enumerate(labels)}
    yield Facet(
        title="your line", labels=tuple(labels), of_block=np.array([number[name] for name in names], np.int64)[where]
    )
    rows = rebuilt.row_of_key[keys]
    yield from _labels(recording, keys, addresses)
    for title, column in (("stream", recording.history.stream), ("private pool", _pool_of_rows(recording))):
        if not len(column):
            continue
        values = np.where(rows >= 0, column[rows], _NEVER)
        found, of_block = np.unique(values, return_inverse=True)
        if len(found[found != _NEVER]) > 1:
            yield Facet(title=title, labels=tuple(_name(title, value) for value in found.tolist()), of_block=of_block)


def _labels(recording: Recording, keys: Column, addresses: Column) -> Iterator[Facet]:
    rebuilt, history = recording.rebuilt, recording.history
    held = [holder.label for holder in label_holders(recording)]
    labels = RecordedLabels(history)
    if not labels.are_any:
        return
    rows = rebuilt.row_of_key[keys]
    # Blocks from before the recording are replayed at their recorded addresses.
    recorded = np.where(rows >= 0, history.address[rows], addresses) if len(history) else addresses
    of_key = [labels.of_block(*block) for block in zip(rows.tolist(), recorded.tolist(), strict=True)]
    names = tuple(dict.fromkeys([*held, *of_key]))
    if set(names) - {UNNAMED}:
        number = {name: index for index, name in enumerate(names)}
        yield Facet(title="label", labels=names, of_block=np.array([number[name] for name in of_key], np.int64))


def _pool_of_rows(recording: Recording) -> Column:
    made = np.flatnonzero(recording.program.op == Op.ALLOCATE)
    pools = np.zeros(len(recording.history), np.int64)
    pools[recording.rebuilt.row_of_op[made]] = recording.pool_of_ops()[made]
    return pools


def _roles(recording: Recording, roles: RoleColumns, keys: Column) -> Facet:
    held = [share.role for share in role_shares(recording, roles)]
    order = [*held, *(role for role in ROLES if role not in held)]
    place = np.array([order.index(role) for role in ROLES], np.int64)
    labels = tuple(role.label for role in order)
    return Facet(title="role", labels=labels, of_block=place[roles.role[keys]])


def _name(title: str, value: int) -> str:
    if value == _NEVER:
        return "(before recording began)"
    if value == 0:
        return "default stream" if title == "stream" else "no private pool"
    return f"{title} {value:#x}" if title == "stream" else f"{title} {value}"


# The index is -1 for a block without a stack.
def _stacks(recording: Recording, stack: Column) -> tuple[StackColumns, Column]:
    stacks = recording.history.stacks
    used, where = np.unique(np.append(-1, np.maximum(stack, -1)), return_inverse=True)
    begins, ends = stacks.starts[used[1:]], stacks.starts[used[1:] + 1]
    lengths = ends - begins
    starts = np.append(0, np.cumsum(lengths))
    rows = np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])
    frames, numbers = np.unique(stacks.frames[rows], return_inverse=True)
    table = [stacks.table[row] for row in frames.tolist()]
    return StackColumns(
        starts=starts,
        frames=numbers,
        texts=tuple(f"{shortened(frame.file)}:{frame.line} {shortened(frame.name)}" for frame in table),
        is_own=tuple(frame.is_users or is_text(frame.file) for frame in table),
    ), where[1:] - 1


@dataclass(frozen=True, slots=True)
class _Extent:
    born: int
    kind: str
    is_page: bool


# `gone` is -1 if the allocator never returned the range to the driver.
@dataclass(frozen=True, slots=True)
class _ExtentLife:
    address: int
    size_bytes: int
    extent: _Extent
    gone: int


def segments_of(recording: Recording, calls: Calls) -> SegmentColumns:
    """Return every segment with the time range in which the allocator held it. Pages of an expandable segment are
    separate entries.

    Args:
        recording: the run.
        calls: the driver calls in the replay of the run.
    """
    moments = len(recording.program) + 1
    lives = list(_extent_lives(recording, calls))
    kinds = sorted({life.extent.kind for life in lives}, key=lambda kind: ("pool" in kind, kind))
    return SegmentColumns(
        born=_column(life.extent.born for life in lives),
        life=_column((life.gone if life.gone >= 0 else moments) - life.extent.born for life in lives),
        address=_column(life.address for life in lives),
        size_bytes=_column(life.size_bytes for life in lives),
        is_page=_column(life.extent.is_page for life in lives),
        kind=_column(kinds.index(life.extent.kind) for life in lives),
        kinds=tuple(kinds),
    )


def _column(values: Iterator[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.fromiter(values, np.int64)


def _extent_lives(recording: Recording, calls: Calls) -> Iterator[_ExtentLife]:
    held: Ranges[_Extent] = Ranges()
    naming = _Naming(recording)
    for segment in recording.program.start:
        kind = naming.kind(segment.is_small, segment.stream, segment.pool)
        for address, size in _mapped(segment):
            held.put(address, address + size, _Extent(0, kind, segment.is_expandable))
    columns = (calls.op, calls.call, calls.size, calls.count, calls.address)
    for op, call, size, count, address in zip(*(column.tolist() for column in columns), strict=True):
        end = address + size * (count or 1)
        if call in (Call.MALLOC, Call.MAP):
            held.put(address, end, _Extent(op + 1, naming.kind_of(op, size), call == Call.MAP))
        elif call in (Call.FREE, Call.UNMAP):
            yield from (_ExtentLife(low, high - low, extent, op + 1) for low, high, extent in held.cut(address, end))
    yield from (_ExtentLife(low, high - low, extent, -1) for low, high, extent in held)


def _mapped(segment: StartSegment) -> Iterator[tuple[int, int]]:
    at = segment.address
    for is_mapped, blocks in groupby(segment.blocks, key=lambda block: block[2] != UNMAPPED_KEY):
        size = sum(size for size, *_ in blocks)
        if is_mapped:
            yield at, size
        at += size


class _Naming:
    def __init__(self, recording: Recording) -> None:
        self._program = recording.program
        self._pools = recording.pool_of_ops()

    def kind_of(self, op: int, size: int) -> str:
        is_request = self._program.op[op] == Op.ALLOCATE
        pool = int(self._pools[op]) if is_request else 0
        return self.kind(size == SMALL_SEGMENT_BYTES, int(self._program.stream[op]) if is_request else 0, pool)

    def kind(self, is_small: bool, stream: int, pool: int) -> str:  # noqa: FBT001  one of three properties that distinguish segments
        name = "small blocks (up to 1 MiB)" if is_small else "large blocks"
        name += f", private pool {pool}" if pool else ""
        return name + (f", stream {stream:#x}" if stream else "")
