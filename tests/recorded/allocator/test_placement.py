"""Where segments go, against a plain model of each rule; and which of equally large free blocks each version takes."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as effort
from hypothesis import strategies as st

from ullage.recorded.allocator.placement import PLACEMENTS, foretell, placement_of
from ullage.recorded.allocator.replay import Call, ReplayDevice, replay
from ullage.recorded.program import Op, Program, ProgramWriter, StartSegment
from ullage.recorded.settings import ALLOCATORS, SEMANTICS, Settings, Tie

MIB = 1 << 20
CHUNK, PAGE = 32 * MIB, 2 * MIB
TOP, BOTTOM = 0x780000000000, 0x700000000000  # where the core begins, with no address known


def gaps_of(segments: dict[int, int], start: int, stop: int) -> list[tuple[int, int]]:
    """What is free between two addresses: (address, bytes), ascending."""
    edges = [start, *(edge for at in sorted(segments) if start <= at < stop for edge in (at, at + segments[at])), stop]
    return [(low, high - low) for low, high in zip(edges[::2], edges[1::2], strict=True) if high > low]


class Linux:
    """The rule as it is told in docs/allocator.md, by looking at everything."""

    def __init__(self) -> None:
        self.chunks: dict[int, int] = {}
        self.segments: dict[int, int] = {}

    def take(self, size: int) -> int:
        for chunk in sorted(self.chunks):
            for address, room in gaps_of(self.segments, chunk, chunk + self.chunks[chunk]):
                if room >= size:
                    self.segments[address] = size
                    return address
        need = -(-size // CHUNK) * CHUNK
        bound = TOP
        for chunk in sorted(self.chunks, reverse=True):
            if bound - (chunk + self.chunks[chunk]) >= need:
                break
            bound = chunk
        self.chunks[bound - need] = need
        self.segments[bound - need] = size
        return bound - need

    def give(self, address: int) -> None:
        del self.segments[address]
        chunk = max(begin for begin in self.chunks if begin <= address)
        if not any(chunk <= at < chunk + self.chunks[chunk] for at in self.segments):
            del self.chunks[chunk]


class Windows:
    """The lowest gap."""

    def __init__(self) -> None:
        self.segments: dict[int, int] = {}

    def take(self, size: int) -> int:
        address = next(at for at, room in gaps_of(self.segments, BOTTOM, TOP) if room >= size)
        self.segments[address] = size
        return address

    def give(self, address: int) -> None:
        del self.segments[address]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.sampled_from((MIB, 3 * MIB, 12 * MIB, 30 * MIB, 32 * MIB, 33 * MIB, 70 * MIB))),
        st.tuples(st.just("take"), st.integers(1, 150).map(lambda pages: pages * PAGE)),
        st.tuples(st.just("give"), st.integers(0, 1000)),
        st.tuples(st.just("empty"), st.just(0)),
    ),
    max_size=150,
)


def program_of(operations: list[tuple[str, int]]) -> Program:
    writer, alive, keys = ProgramWriter(), list[int](), 0
    for what, number in operations:
        if what == "take":
            writer.add(Op.ALLOCATE, key=keys, size=number)
            alive.append(keys)
            keys += 1
        elif what == "give" and alive:
            writer.add(Op.FREE, key=alive.pop(number % len(alive)))
        elif what == "empty":
            writer.add(Op.EMPTY_CACHE)
    return writer.program()


def driven(program: Program, placement: str | None) -> list[tuple[Call, int, int]]:
    """The driver's calls: what, where, how many whole pages' bytes."""
    done = replay(program, Settings(), ReplayDevice(total_bytes=8 << 30, placement=placement), calls=True)
    assert done.calls is not None
    columns = (done.calls.call, done.calls.address, done.calls.size)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(Call(call), at, -(-size // PAGE) * PAGE) for call, at, size in rows if call in (Call.MALLOC, Call.FREE)]


@pytest.mark.parametrize(("placement", "model"), [("linux", Linux), ("windows", Windows)])
@effort(max_examples=150, deadline=None)
@given(OPERATIONS)
@example([("take", 40 * MIB), ("take", 20 * MIB), ("take", 40 * MIB), ("give", 0), ("empty", 0), ("take", 70 * MIB)])
def test_every_segment_lies_where_a_plain_model_puts_it(
    placement: str, model: type[Linux | Windows], operations: list[tuple[str, int]]
) -> None:
    plain = model()
    for call, address, size in driven(program_of(operations), placement):
        if call is Call.MALLOC:
            assert address == plain.take(size)
        else:
            plain.give(address)


@pytest.mark.parametrize("placement", PLACEMENTS)
@effort(max_examples=50, deadline=None)
@given(OPERATIONS)
def test_segments_are_whole_pages_and_never_overlap(placement: str, operations: list[tuple[str, int]]) -> None:
    alive: dict[int, int] = {}
    for call, address, size in driven(program_of(operations), placement):
        if call is Call.FREE:
            del alive[address]
            continue
        assert address % PAGE == 0
        alive[address] = size
        assert all(low + alive[low] <= high for low, high in pairwise(sorted(alive)))


def test_a_chunk_is_given_back_and_its_hole_is_the_highest() -> None:
    """Three chunks of 32, 64 and 32 MiB; where the middle one was, one of 64 MiB goes, and one of 96 below all."""
    sizes = (32, 64, 32)
    taken = [("take", size * MIB) for size in sizes]
    calls = driven(program_of([*taken, ("give", 1), ("empty", 0), ("take", 96 * MIB), ("take", 40 * MIB)]), "linux")
    places = [(TOP - address) // MIB for call, address, _ in calls if call is Call.MALLOC]
    assert places == [32, 96, 128, 224, 96]


def test_what_is_left_of_a_chunk_serves_first_from_the_lowest_address_on() -> None:
    calls = driven(
        program_of([("take", 40 * MIB), ("take", 20 * MIB), ("take", 20 * MIB), ("take", 30 * MIB)]), "linux"
    )
    places = [(TOP - address) // MIB for _, address, _ in calls]
    assert places == [64, 24, 96, 128]  # 24 MiB are left of the first, then 4


def test_a_gap_that_the_driver_passed_over_is_somebody_elses() -> None:
    """Made up, with somebody else's memory in the way: (MiB, MiB below the top)."""
    rows = [(32, 32, 1), (32, 128, 1), (32, 160, 1), (32, 192, 1)]  # the hole of 64 MiB is left alone
    address = np.array([TOP - below * MIB for _, below, _ in rows])
    size = np.array([mib * MIB for mib, _, _ in rows])
    found = foretell(address, size, np.ones(len(rows), np.int64), "linux")
    assert [(TOP - at) // MIB for at in found.tolist()[1:]] == [64, 64, 192]


@pytest.mark.parametrize(
    ("addresses", "start", "expected"),
    [
        ((), (), "linux"),
        ((0x7F0000000000,), (), "linux"),
        ((0x710000000,), (), "windows"),
        ((), (0x710000000,), "windows"),
        ((), (0x7F0000000000,), "linux"),
    ],
)
def test_the_addresses_of_a_recording_tell_its_system(
    addresses: tuple[int, ...], start: tuple[int, ...], expected: str
) -> None:
    segments = tuple(
        StartSegment(address=at, stream=0, is_small=False, is_expandable=False, blocks=((PAGE, PAGE, -1),))
        for at in start
    )
    program = replace(ProgramWriter().program(), recorded_addresses=addresses, start=segments)
    assert placement_of(program) == expected


def test_recorded_addresses_come_first_and_the_rule_goes_on_from_there() -> None:
    top = 0x7F1234000000
    recorded = (top - 32 * MIB, top - 96 * MIB)
    program = replace(program_of([("take", 32 * MIB)] * 4), recorded_addresses=recorded)
    places = [(top - address) // MIB for _, address, _ in driven(program, None)]
    assert places == [32, 96, 64, 128]
    low = replace(program, recorded_addresses=(0x710000000, 0x710000000 + 64 * MIB))
    places = [(address - 0x710000000) // MIB for _, address, _ in driven(low, None)]
    assert places == [0, 64, 32, 96]


# ---- equally large free blocks

TIES = ProgramWriter()
for _op, _key, _mib in (
    ("take", 0, 60),  # the older segment
    ("take", 1, 60),
    ("give", 0, 0),
    ("take", 2, 20),  # its front, a block that is made now
    ("take", 3, 40),
    ("give", 1, 0),
    ("take", 4, 40),  # of the younger segment the rest stays the block that it was: made before the other's front
    ("give", 2, 0),
    ("take", 5, 20),
):
    TIES.add(Op.ALLOCATE if _op == "take" else Op.FREE, key=_key, size=_mib * MIB)


@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("placement", ["ascending", "descending", "linux"])
def test_of_equally_large_blocks_each_version_takes_its_own(semantics: str, placement: str) -> None:
    done = replay(
        TIES.program(),
        Settings(semantics=semantics),
        ReplayDevice(total_bytes=8 << 30, placement=placement),
        places=True,
    )
    assert done.places is not None
    taken = int(done.places.segment[-1])
    tie = ALLOCATORS[semantics].tie
    lower = 0 if placement == "ascending" else 1
    assert taken == {Tie.ADDRESS: lower, Tie.BLOCK: 1, Tie.SEGMENT: 0}[tie]
    assert (done.address_ties > 0) == (tie is Tie.ADDRESS)


def test_a_tie_between_recorded_addresses_is_no_guess() -> None:
    program = replace(TIES.program(), recorded_addresses=(0x7F0000000000, 0x7F1000000000))
    assert replay(program, Settings(), ReplayDevice(total_bytes=8 << 30)).address_ties == 0
    first_only = replace(program, recorded_addresses=(0x7F0000000000,))
    assert replay(first_only, Settings(), ReplayDevice(total_bytes=8 << 30)).address_ties == 1
