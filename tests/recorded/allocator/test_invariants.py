"""What must hold whatever a program does: of any operations, under any settings, of any version."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from ullage.base.errors import UsageError
from ullage.recorded.allocator.placement import PLACEMENTS
from ullage.recorded.allocator.replay import Call, LevelColumns, Replay, ReplayDevice, State, replay
from ullage.recorded.program import Op, Program, ProgramWriter, StartSegment
from ullage.recorded.settings import Settings, parse_settings

MIB = 1 << 20
MORE = 20 if os.environ.get("ULLAGE_SLOW") else 1
STREAMS = (0, 0x100, 0x200)
SIZES = st.one_of(
    st.integers(1, 2 * MIB),
    st.integers(MIB, 60 * MIB),
    st.sampled_from((512, MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB, 20 * MIB, 200 * MIB, 1 << 62)),
)


@dataclass(frozen=True)
class Case:
    """A program, its settings and its card."""

    program: Program
    settings: Settings
    device: ReplayDevice
    has_pools: bool

    def run(self, length: int | None = None, **wanted: Any) -> Replay:
        return replay(prefix(self.program, length), self.settings, self.device, **wanted)


def prefix(program: Program, length: int | None) -> Program:
    columns = {name: getattr(program, name)[:length] for name in ("op", "key", "size", "stream")}
    return replace(program, **columns)


def with_ops(program: Program, *ops: Op) -> Program:
    """The program, and operations behind it."""
    more = {name: np.append(getattr(program, name), np.zeros(len(ops), np.int64)) for name in ("key", "size", "stream")}
    return replace(program, op=np.append(program.op, np.array(ops, np.int64)), **more)


@st.composite
def alloc_confs(draw: st.DrawFn, semantics: str) -> Settings:
    large = draw(st.sampled_from((12, 20, 48)))
    words = [f"large_segment_size_mb:{large}"]
    if draw(st.booleans()):
        words.append(f"max_split_size_mb:{draw(st.integers(large, 100))}")
    if draw(st.booleans()):
        words.append(f"roundup_power2_divisions:{draw(st.sampled_from((1, 2, 8)))}")
    if draw(st.booleans()):
        words.append("garbage_collection_threshold:0.5")
    words.append(f"expandable_segments:{draw(st.booleans())}")
    if semantics == "2.15" and draw(st.booleans()):
        words.append(draw(st.sampled_from(("throw_on_cudamalloc_oom:True", "expandable_segments_reserve:0.3"))))
    return parse_settings(",".join(words), semantics=semantics)


@st.composite
def starts(draw: st.DrawFn) -> tuple[StartSegment, ...]:
    """Segments that are there before, whose allocated blocks have the first keys."""
    found: list[StartSegment] = []
    next_address, next_reservation = 0x700000000000, 0x100000000000
    for _ in range(draw(st.integers(0, 3))):
        small = draw(st.booleans())
        parts = draw(st.lists(st.integers(1, 1000), min_size=1, max_size=4))
        unit = 512 if small else MIB
        sizes = [part * unit for part in parts]
        rest = -sum(sizes) % (2 * MIB)
        sizes[-1] += rest
        blocks, was_free = [], False
        key = sum(1 for segment in found for *_, name in segment.blocks if name >= 0)
        for size in sizes:
            was_free = not was_free and draw(st.booleans())
            blocks.append((size, size, -1) if was_free else (size, size - 7, key))
            key += not was_free
        stream, expandable = draw(st.sampled_from(STREAMS)), draw(st.booleans())
        address = next_reservation if expandable else next_address
        found.append(
            StartSegment(address=address, stream=stream, is_small=small, is_expandable=expandable, blocks=tuple(blocks))
        )
        if expandable:
            next_reservation += 1 << 33  # more than the card's 9/8
        else:
            next_address += sum(sizes) + draw(st.sampled_from((0, 2 * MIB)))
    return tuple(found)


@st.composite
def cases(draw: st.DrawFn, *, pools: bool = True) -> Case:
    semantics = draw(st.sampled_from(("2.11", "2.12", "2.13", "2.15")))
    settings = draw(alloc_confs(semantics))
    start = draw(starts())
    writer = ProgramWriter()
    keys = sum(1 for segment in start for *_, key in segment.blocks if key >= 0)
    has_pools = pools and draw(st.booleans())
    made = 0
    codes = ["allocate"] * 8 + ["free"] * 6 + ["use", "hold", "unhold", "empty", "fraction", "fail", "others", "toggle"]
    codes += ["pool", "end", "release", "capture"] if has_pools else []
    for code in draw(st.lists(st.sampled_from(codes), min_size=1, max_size=120)):
        stream = draw(st.sampled_from(STREAMS))
        some_key = draw(st.integers(0, max(keys - 1, 0)))
        match code:
            case "allocate":
                writer.add(Op.ALLOCATE, key=keys, size=draw(SIZES), stream=stream)
                keys += 1
            case "free":
                writer.add(Op.FREE, key=some_key)
            case "use":
                writer.add(Op.RECORD_STREAM, key=some_key, stream=stream)
            case "hold" | "unhold":
                writer.add(Op.HOLD if code == "hold" else Op.UNHOLD, stream=stream)
            case "empty":
                writer.add(Op.EMPTY_CACHE)
            case "fraction":
                writer.set_fraction(draw(st.sampled_from((0.3, 0.8, 1.0))))
            case "fail":
                writer.add(Op.FAIL_NEXT, key=draw(st.integers(1, 3)))
            case "others":
                writer.add(Op.SET_OTHERS, size=draw(st.integers(0, 300 * MIB)))
            case "toggle":
                settings_then = replace(settings, expandable_segments=draw(st.booleans()))
                writer.set_settings(settings_then)
            case "pool":
                made += 1
                writer.begin_pool(made, draw(st.sampled_from((None, [STREAMS[1]]))))
            case "end" | "release":
                op = Op.END_POOL if code == "end" else Op.RELEASE_POOL
                writer.add(op, key=draw(st.integers(1, max(made, 1))))
            case "capture":
                writer.add(draw(st.sampled_from((Op.BEGIN_CAPTURE, Op.END_CAPTURE))))
    device = ReplayDevice(
        total_bytes=800 * MIB,
        placement=draw(st.sampled_from((None, *PLACEMENTS))) if not start else None,
    )
    return Case(replace(writer.program(), start=start), settings, device, has_pools)


def rows_of(done: Replay) -> list[dict[str, int]]:
    names = ("address", "size", "requested", "state", "stream", "key", "segment", "pool")
    columns = [getattr(done.blocks, name).tolist() for name in names]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def everything(done: Replay) -> list[Any]:
    """All that a replay tells, as lists that can be compared."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.tolist()
        return [plain(each) for each in value] if isinstance(value, tuple) else value

    return [plain(value) for value in astuple(done)]


@effort(max_examples=75 * MORE, deadline=None)
@given(cases())
def test_blocks_fill_their_segments_and_do_not_overlap(case: Case) -> None:
    done = case.run()
    blocks = done.blocks
    end = 0
    for segment, (address, size) in enumerate(
        zip(blocks.segment_address.tolist(), blocks.segment_size.tolist(), strict=True)
    ):
        assert address >= end, "segments overlap"
        end = address
        for row in (row for row in rows_of(done) if row["segment"] == segment):
            assert row["address"] == end, "a gap, or an overlap"
            end += row["size"]
        assert end == address + size


@effort(max_examples=75 * MORE, deadline=None)
@given(cases())
def test_the_statistics_are_the_sums_of_the_blocks(case: Case) -> None:
    """Unless one of PyTorch's own assertions ended the program, which may be half-way through an operation."""
    done = case.run()
    if done.broken:
        return
    rows = rows_of(done)
    expandable = done.blocks.segment_is_expandable.tolist()
    alone = {segment: sum(row["segment"] == segment for row in rows) == 1 for segment in range(len(expandable))}

    def total(*states: State, field: str = "size") -> int:
        return sum(row[field] for row in rows if row["state"] in states)

    assert done.now.allocated_bytes == total(State.ALLOCATED)
    assert done.now.active_bytes == total(State.ALLOCATED, State.WAITING)
    assert done.now.requested_bytes == total(State.ALLOCATED, State.WAITING, field="requested")
    assert done.now.reserved_bytes == total(State.ALLOCATED, State.WAITING, State.FREE)
    split = [row for row in rows if row["state"] == State.FREE and not alone[row["segment"]]]
    assert done.now.inactive_split_bytes == sum(row["size"] for row in split if not expandable[row["segment"]])


@effort(max_examples=75 * MORE, deadline=None)
@given(cases())
def test_no_level_is_ever_negative_or_above_its_peak(case: Case) -> None:
    done = case.run(levels=True)
    assert done.levels is not None
    for name in LevelColumns.__slots__:
        column = getattr(done.levels, name)
        assert 0 <= column.min() <= column.max() <= getattr(done.peak, name)
    assert (done.levels.allocated_bytes <= done.levels.active_bytes).all()
    assert (done.levels.active_bytes <= done.levels.reserved_bytes).all()


@effort(max_examples=75 * MORE, deadline=None)
@given(cases())
def test_neighbours_are_never_both_free(case: Case) -> None:
    """What is free side by side, mapped or not, is one block."""
    rows = rows_of(case.run())
    for first, second in pairwise(rows):
        if first["segment"] == second["segment"] and first["state"] == second["state"]:
            assert first["state"] not in (State.FREE, State.UNMAPPED)


@effort(max_examples=75 * MORE, deadline=None)
@given(cases())
def test_the_drivers_calls_are_what_is_reserved(case: Case) -> None:
    done = case.run(calls=True)
    assert done.calls is not None
    found = sum(size for segment in case.program.start for size, *_ in segment.blocks)
    for call, size, count in zip(
        done.calls.call.tolist(), done.calls.size.tolist(), done.calls.count.tolist(), strict=True
    ):
        sign = {Call.MALLOC: 1, Call.MAP: 1, Call.FREE: -1, Call.UNMAP: -1}.get(Call(call), 0)
        found += sign * size * (count or 1)
    assert found == done.now.reserved_bytes
    assert sum(done.call_counts.values()) == len(done.calls.call)


@effort(max_examples=50 * MORE, deadline=None)
@given(cases(pools=False))
def test_an_empty_cache_holds_only_what_lives(case: Case) -> None:
    """Every cudaMalloc has a block that is allocated, and no whole page of an expandable segment is free."""
    done = replay(with_ops(case.program, Op.EMPTY_CACHE), case.settings, case.device)
    rows = rows_of(done)
    small = done.blocks.is_small.tolist()
    for segment, is_expandable in enumerate(done.blocks.segment_is_expandable.tolist()):
        if not is_expandable:
            assert any(row["segment"] == segment and row["state"] == State.ALLOCATED for row in rows)
    for row, is_small in zip(rows, small, strict=True):
        assert row["state"] != State.WAITING
        if row["state"] == State.FREE and done.blocks.segment_is_expandable[row["segment"]]:
            page = 2 * MIB if is_small else case.settings.large_segment_bytes
            offset = row["address"] - int(done.blocks.segment_address[row["segment"]])
            assert -(-offset // page) >= (offset + row["size"]) // page


@effort(max_examples=50 * MORE, deadline=None)
@given(cases(), st.data())
def test_a_part_of_a_program_does_what_the_whole_does_until_there(case: Case, data: st.DataObject) -> None:
    whole = case.run(levels=True, places=True, calls=True)
    length = data.draw(st.integers(0, len(case.program)))
    part = case.run(length, levels=True, places=True, calls=True)
    length = min(length, whole.done)
    assert whole.calls is not None
    assert part.calls is not None
    for name in LevelColumns.__slots__:
        assert getattr(part.levels, name).tolist() == getattr(whole.levels, name)[:length].tolist()
    for name in ("address", "segment", "offset"):
        assert getattr(part.places, name).tolist() == getattr(whole.places, name)[:length].tolist()
    assert part.calls.call.tolist() == whole.calls.call[whole.calls.op < length].tolist()
    assert part.oom_ops.tolist() == whole.oom_ops[whole.oom_ops < length].tolist()


@effort(max_examples=50 * MORE, deadline=None)
@given(cases())
def test_it_ends_at_the_first_request_that_fails_where_asked(case: Case) -> None:
    whole, first = case.run(), case.run(stop_after_ooms=1)
    failures = sorted([*whole.oom_ops.tolist(), *whole.rejected_ops.tolist()])
    assert first.done == (failures[0] + 1 if failures else whole.done)


@effort(max_examples=30 * MORE, deadline=None)
@given(st.lists(cases(), min_size=2, max_size=4))
def test_threads_find_what_one_after_the_other_finds(found: list[Case]) -> None:
    """And twice the same."""
    serial = [everything(case.run(levels=True, places=True, calls=True)) for case in found]
    with ThreadPoolExecutor(4) as threads:
        tasks = [threads.submit(case.run, levels=True, places=True, calls=True) for case in found * 2]
        assert [everything(task.result()) for task in tasks] == serial * 2


def test_a_million_operations_take_less_than_a_second() -> None:
    """Of what `make bench` measures ten times over; here with room for a machine that is busy."""
    chance = np.random.default_rng(1)
    pairs = 500_000
    key = np.repeat(np.arange(pairs), 2)
    op = np.tile([Op.ALLOCATE, Op.FREE], pairs).astype(np.int64)
    size = np.where(op == Op.ALLOCATE, chance.integers(1, 8 * MIB, 2 * pairs), 0)
    program = Program(op=op, key=key, size=size, stream=np.zeros(2 * pairs, np.int64))
    began = time.thread_time()
    done = replay(program, Settings(), ReplayDevice(total_bytes=1 << 34))
    assert time.thread_time() - began < 1
    assert done.now.allocated_bytes == 0
    assert done.done == 2 * pairs


def test_what_was_split_before_the_program_is_not_given_back_by_halves() -> None:
    """Under max_split_size_mb large blocks are never split, but those that a program begins with may be."""
    blocks = ((100 * MIB, 100 * MIB, 0), (500 * MIB, 500 * MIB, -1))
    start = (StartSegment(address=1 << 40, stream=0, is_small=False, is_expandable=False, blocks=blocks),)
    writer = ProgramWriter()
    writer.add(Op.ALLOCATE, key=1, size=700 * MIB)
    settings = parse_settings("max_split_size_mb:50")
    done = replay(replace(writer.program(), start=start), settings, ReplayDevice(total_bytes=800 * MIB))
    assert done.oom_ops.tolist() == [0]
    assert done.now.reserved_bytes == 600 * MIB
    assert done.blocks.size.tolist() == [100 * MIB, 500 * MIB]


def test_a_size_that_wraps_gets_an_empty_block_as_in_pytorch() -> None:
    """2^64 - 512 bytes are a whole number of small blocks, and with the segment's rounding none at all."""
    columns = {name: np.zeros(1, np.int64) for name in ("op", "key", "stream")}
    done = replay(Program(**columns, size=np.array([-512])), Settings(), ReplayDevice(total_bytes=1 << 30))
    assert not done.ran_out
    assert done.call_counts[Call.MALLOC] == 1
    assert (done.now.allocated_bytes, done.now.reserved_bytes, done.now.requested_bytes) == (0, 0, -512)


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        (
            [(0, (2 * MIB,)), (MIB, (2 * MIB,))],
            "the segment at 0x100000 that exists when the program begins overlaps another",
        ),
        ([(1 << 62, (512,))], "has impossible addresses"),
        ([(0, ())], "has blocks that do not add up to whole pages"),
        ([(0, (512, 0))], "has blocks that do not add up to whole pages"),
        ([(0, (-512,))], "has blocks that do not add up to whole pages"),
    ],
)
def test_what_cannot_have_been_there_is_refused(segments: list[tuple[int, tuple[int, ...]]], said: str) -> None:
    start = tuple(
        StartSegment(
            address=address,
            stream=0,
            is_small=False,
            is_expandable=False,
            blocks=tuple((size, size, -1) for size in sizes),
        )
        for address, sizes in segments
    )
    with pytest.raises(UsageError, match=said):
        replay(replace(ProgramWriter().program(), start=start), Settings(), ReplayDevice(total_bytes=1 << 30))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"op": 18}, "an operation that is not in the table"),
        ({"op": -1}, "an operation that is not in the table"),
        ({"key": -1}, "a block with a key that is negative or above 2^31"),
        ({"key": 1 << 31}, "a block with a key that is negative or above 2^31"),
        ({"op": Op.SET_SETTINGS}, "refers to settings or a route that it does not have"),
        ({"op": Op.BEGIN_POOL}, "refers to settings or a route that it does not have"),
    ],
)
def test_a_program_that_makes_no_sense_is_refused(change: dict[str, int], said: str) -> None:
    columns = {name: np.array([change.get(name, 0)], np.int64) for name in ("op", "key", "size", "stream")}
    with pytest.raises(UsageError, match=said.replace("^", r"\^")):
        replay(Program(**columns), Settings(), ReplayDevice(total_bytes=1 << 30))


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ({"placement": "macos"}, "'macos' is not a placement; expected one of "),
        ({"others_bytes": -1}, "with -1 used by other processes is impossible"),
        ({"total_bytes": 0}, "a GPU of 0 bytes"),
        ({"total_bytes": 1 << 62}, "is impossible"),
    ],
)
def test_a_card_that_cannot_be_is_refused(device: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        replay(ProgramWriter().program(), Settings(), ReplayDevice(**{"total_bytes": 1 << 30} | device))


def test_columns_of_different_lengths_are_refused() -> None:
    program = replace(ProgramWriter().program(), op=np.zeros(1, np.int64))
    with pytest.raises(UsageError, match="the columns of a program have different lengths"):
        replay(program, Settings(), ReplayDevice(total_bytes=1 << 30))
