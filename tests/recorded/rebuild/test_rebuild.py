"""Run again under its own settings, a recorded run does what was recorded: every driver call, every address."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ullage.explaining.analysis.fidelity import driven_by_op
from ullage.explaining.analysis.recording import cut
from ullage.recorded.allocator.replay import Replay, ReplayDevice, replay
from ullage.recorded.history import Action, History, Labels, Segment
from ullage.recorded.program import Op
from ullage.recorded.rebuild import UNBOUNDED_BYTES, Rebuilder, Rebuilt, Unrecorded, program_of, rebuild
from ullage.recorded.rebuild.ranges import Ranges
from ullage.recorded.rebuild.segment_life import given_up, pool_of_rows
from ullage.recorded.settings import parse_settings
from ullage.recorded.snapshot.snapshot import load_snapshot

DATA = Path(__file__).parents[2] / "snapshots"
MIB = 1 << 20
NAMES = sorted(path.name.removesuffix(".pickle.gz") for path in DATA.glob("*.pickle.gz"))


def history_of(name: str) -> History:
    return load_snapshot(DATA / f"{name}.pickle.gz").devices[0]


def run(made: Rebuilt, text: str | None = None) -> Replay:
    settings = made.settings if text is None else parse_settings(text)
    return replay(made.program, settings, ReplayDevice(total_bytes=made.room_bytes), calls=True, places=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_recorded_run_comes_out_again(name: str) -> None:
    """Segment events in order, what is reserved at the end, and where each block lies (not in expandable segments)."""
    history = history_of(name)
    made = program_of(history)
    done = run(made)
    assert made.is_whole
    assert driven_by_op(done) == dict(made.recorded_calls)
    assert done.now.reserved_bytes == history.reserved_bytes
    live = sum(block.size for segment in history.segments for block in segment.blocks if block.state != "inactive")
    assert done.now.active_bytes == live
    if "expandable" not in name:
        assert done.places is not None
        ops = made.program.op == Op.ALLOCATE
        entries = made.row_of_op[ops]
        there = history.action[entries] == Action.ALLOC
        assert (done.places.address[ops][there] == history.address[entries][there]).all()


def test_versions_share_a_program_and_what_changes_it_makes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large recording is reconstructed once for all versions: it takes longer than to replay it."""
    made, really = [], rebuild._reconstructed
    monkeypatch.setattr(rebuild, "_reconstructed", lambda *given: made.append(given) or really(*given))
    history = history_of("variable_length_oom")
    rebuilder = Rebuilder(history)
    first = rebuilder.program_of()
    for semantics in ("2.12", "2.15"):
        other = rebuilder.program_of(semantics=semantics)
        assert other.program is first.program
        assert (other.settings.semantics, other.notes) == (semantics, program_of(history, semantics=semantics).notes)
    del made[:]
    rebuilder.program_of(alloc_conf="max_split_size_mb:64")
    rebuilder.program_of(unrecorded=Unrecorded(oom_pool=1))
    less = rebuilder.program_of(capacity_bytes=1 << 30)
    assert (len(made), less.room_bytes) == (3, 1 << 30)


def test_what_ran_out_runs_out_again() -> None:
    """13 retries, then a request that would have needed a segment of 346 MiB, as PyTorch's own error said."""
    made = program_of(history_of("variable_length_oom"))
    done = run(made)
    assert (done.retries, len(done.oom_ops)) == (13, 1)
    size = made.size_of_key[made.program.key[done.oom_ops[0]]]
    assert -(-size // (2 * MIB)) * 2 * MIB == 346 * MIB
    assert made.room_bytes == (3300 - 450) * MIB


def test_expandable_segments_would_have_saved_it() -> None:
    """As the same run with them shows, which the emulator did."""
    made = program_of(history_of("variable_length_oom"))
    done = run(made, "expandable_segments:True")
    assert not done.ran_out
    assert done.retries == 0
    there = program_of(history_of("variable_length_expandable"))
    assert there.room_bytes == UNBOUNDED_BYTES
    assert done.peak.reserved_bytes <= run(there).peak.reserved_bytes


def test_a_recording_that_begins_in_the_middle(tmp_path: Path) -> None:
    """The first third of the entries is cut off, as a full ring does: what was alive then is there at the start."""
    history = history_of("normal")
    begin = len(history) // 3
    columns = ("action", "address", "size", "stream", "time_us", "stack")
    late = replace(history, **{name: getattr(history, name)[begin:] for name in columns})
    made = program_of(late)
    assert not made.is_whole
    done = run(made)
    assert done.now.reserved_bytes == history.reserved_bytes
    assert driven_by_op(done) == dict(made.recorded_calls)


@pytest.mark.parametrize("name", ["normal", "variable_length_oom"])
def test_what_was_there_before_has_its_true_sizes(name: str) -> None:
    """The blocks at the start of a recording cut in the middle are those of the whole run at that moment.

    But for a block that a free one follows: how much of the gap, up to 1 MiB, was never split off is not told.
    """
    history = history_of(name)
    whole = program_of(history)
    begin = len(history) // 2
    while history.action[begin] == Action.FREE_COMPLETED:  # it belongs to the entry before
        begin += 1
    columns = ("action", "address", "size", "stream", "time_us", "stack")
    late = program_of(replace(history, **{name: getattr(history, name)[begin:] for name in columns}))
    ops = int(np.searchsorted(whole.row_of_op, begin))
    done = replay(cut(whole.program, ops), whole.settings, ReplayDevice(total_bytes=whole.room_bytes))
    true = {
        segment: done.blocks.size[done.blocks.segment == index].tolist()
        for index, segment in enumerate(done.blocks.segment_address.tolist())
    }
    rebuilt = {segment.address: [size for size, *_ in segment.blocks] for segment in late.program.start}
    assert len(rebuilt) > 50
    assert {segment: len(sizes) for segment, sizes in rebuilt.items()} == {seg: len(true[seg]) for seg in rebuilt}
    differing = [segment for segment, sizes in rebuilt.items() if sizes != true[segment]]
    assert len(differing) <= 1
    for segment in differing:
        assert max(abs(a - b) for a, b in zip(rebuilt[segment], true[segment], strict=True)) <= MIB


def made_of(rows: tuple[tuple[int, int, int], ...]) -> History:
    """A history of (action, address, bytes), on one stream."""
    columns = np.array(rows, np.int64).T
    nothing = np.zeros(len(rows), np.int64)
    return replace(
        history_of("normal"),
        **dict(zip(("action", "address", "size"), columns, strict=True)),
        **dict.fromkeys(("stream", "time_us"), nothing),
        stack=nothing - 1,
        segments=(),
    )


def test_streams_that_still_use_a_block_hold_it_back() -> None:
    """A block that comes back after the next request was used elsewhere until then: only a later one gets its place."""
    rows = (
        (Action.SEGMENT_ALLOC, 0x1000000, 20 * MIB),
        (Action.ALLOC, 0x1000000, 4 * MIB),
        (Action.FREE_REQUESTED, 0x1000000, 4 * MIB),
        (Action.ALLOC, 0x1000000 + 4 * MIB, 4 * MIB),
        (Action.FREE_COMPLETED, 0x1000000, 4 * MIB),
        (Action.ALLOC, 0x1000000, 4 * MIB),
    )
    made = program_of(made_of(rows))
    assert [Op(op).name for op in made.program.op] == [
        *("ALLOCATE", "HOLD", "RECORD_STREAM", "FREE", "ALLOCATE", "COMPLETE", "ALLOCATE")
    ]
    done = run(made)
    assert done.places is not None
    places = done.places.address[made.program.op == Op.ALLOCATE]
    assert places.tolist() == [0x1000000, 0x1000000 + 4 * MIB, 0x1000000]


PAGE, FIRST = 20 * MIB, 0x1000000


def pools_of(history: History) -> list[int]:
    """The private pool of each entry, without labels."""
    return pool_of_rows(history, program_of(history).lives).tolist()


def test_a_block_of_an_expandable_pool_is_told_by_the_pages_that_it_lies_in() -> None:
    """Pages that were mapped behind a block later say nothing of that block."""
    history = made_of(
        (
            (Action.SEGMENT_MAP, FIRST, PAGE),
            (Action.ALLOC, FIRST, PAGE),
            (Action.SEGMENT_MAP, FIRST + PAGE, PAGE),
            (Action.ALLOC, FIRST + PAGE, PAGE),
        )
    )
    there = Segment(address=FIRST, size=2 * PAGE, stream=0, is_large=True, is_expandable=True, pool=7, blocks=())
    assert pools_of(replace(history, segments=(there,))) == [0, 7, 0, 7]


def test_a_block_at_an_address_that_was_another_segments_before_is_of_no_pool() -> None:
    history = made_of(
        (
            (Action.SEGMENT_ALLOC, FIRST, PAGE),
            (Action.ALLOC, FIRST, PAGE),
            (Action.FREE_REQUESTED, FIRST, PAGE),
            (Action.FREE_COMPLETED, FIRST, PAGE),
            (Action.SEGMENT_FREE, FIRST, PAGE),
            (Action.SEGMENT_ALLOC, FIRST, PAGE),
            (Action.ALLOC, FIRST, PAGE),
        )
    )
    there = Segment(address=FIRST, size=PAGE, stream=0, is_large=True, is_expandable=False, pool=7, blocks=())
    assert pools_of(replace(history, segments=(there,))) == [0, 0, 0, 0, 0, 0, 7]


def test_a_pool_is_given_up_when_its_memory_goes_and_it_is_not_used_again() -> None:
    history = made_of(
        (
            (Action.ALLOC, FIRST, MIB),  # pool 3, used again after its memory went
            (Action.SEGMENT_FREE, FIRST, PAGE),
            (Action.ALLOC, FIRST, MIB),
            (Action.ALLOC, FIRST + PAGE, MIB),  # pool 5, given up with its first segment
            (Action.SEGMENT_FREE, FIRST + PAGE, PAGE),
            (Action.SEGMENT_FREE, FIRST + 2 * PAGE, PAGE),
            (Action.SEGMENT_FREE, FIRST + 3 * PAGE, PAGE),  # of no pool
        )
    )
    pools = np.array([3, 3, 3, 5, 5, 5, 0], np.int64)
    assert given_up(replace(history, labels=Labels(pool=pools)), pools) == {5: 4}


def test_ranges_are_what_a_map_of_every_address_says() -> None:
    chance = random.Random(5)
    ranges: Ranges[int] = Ranges()
    byte: dict[int, int] = {}
    for number in range(2000):
        start = chance.randrange(200)
        stop = start + chance.randint(1, 30)
        if chance.random() < 0.5:
            ranges.put(start, stop, number)
            byte |= dict.fromkeys(range(start, stop), number)
        else:
            taken = {at: value for low, high, value in ranges.cut(start, stop) for at in range(low, high)}
            assert taken == {at: byte.pop(at) for at in range(start, stop) if at in byte}
        found = [(at, value) for low, high, value in ranges for at in range(low, high)]
        assert found == sorted(byte.items())


def test_pages_of_large_blocks_are_not_the_beginning_of_a_segment_of_small_ones() -> None:
    """The segment of small blocks lies 9/8 of the card behind; less than that lies between it and the large pages."""
    small, reserved = FIRST + 1152 * MIB, 700 * MIB
    history = made_of(((Action.SEGMENT_MAP, FIRST + reserved, PAGE), (Action.ALLOC, FIRST + reserved, PAGE)))
    sizes = ((FIRST, reserved + PAGE, True), (small, 2 * MIB, False))
    there = tuple(
        Segment(address=address, size=size, stream=0, is_large=is_large, is_expandable=True, pool=0, blocks=())
        for address, size, is_large in sizes
    )
    start = program_of(replace(history, segments=there)).program.start
    assert [(segment.address, segment.reserved_bytes) for segment in start] == [(FIRST, reserved), (small, 2 * MIB)]
