"""Every block of a recorded run with its life: what is alive at each moment is what the allocator had, to the byte."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ullage.explaining.analysis.blocks import block_history_of
from ullage.explaining.analysis.recording import Recording
from ullage.recorded.allocator.replay import ReplayDevice, State, replay
from ullage.recorded.history import Action, History, Labels, RecordedStacks, Segment
from ullage.recorded.program import Column
from ullage.recorded.rebuild import program_of
from ullage.recorded.snapshot.snapshot import load_snapshot
from ullage.report.blocks import BlockHistory

DATA = Path(__file__).parents[2] / "snapshots"
MIB = 1 << 20
FILES = sorted(path.name for path in DATA.glob("*.pickle.gz"))


def recording_of(name: str) -> Recording:
    history = load_snapshot(DATA / name).devices[0]
    return Recording.of(history, program_of(history))


def level(born: Column, life: Column, size: Column, moments: int) -> Column:
    """Bytes at every moment of things with lives."""
    change = np.zeros(moments + 1, np.int64)
    np.add.at(change, born, size)
    np.add.at(change, np.minimum(born + life, moments), -size)
    return np.cumsum(change)[:moments]


def levels(found: BlockHistory) -> tuple[Column, Column, Column]:
    """Allocated, active and reserved bytes at every moment."""
    blocks, segments, moments = found.blocks, found.segments, len(found.event)
    return (
        level(blocks.born, blocks.life, blocks.size_bytes, moments),
        level(blocks.born, blocks.life + blocks.wait, blocks.size_bytes, moments),
        level(segments.born, segments.life, segments.size_bytes, moments),
    )


@pytest.mark.parametrize("name", FILES)
def test_at_every_moment_blocks_and_segments_add_up_to_what_the_allocator_had(name: str) -> None:
    recording = recording_of(name)
    found = block_history_of(recording)
    device = ReplayDevice(total_bytes=recording.rebuilt.room_bytes)
    expected = replay(recording.program, recording.rebuilt.settings, device, levels=True).levels
    assert expected is not None
    allocated, active, reserved = levels(found)
    assert allocated[1:].tolist() == expected.allocated_bytes.tolist()
    assert active[1:].tolist() == expected.active_bytes.tolist()
    assert reserved[1:].tolist() == expected.reserved_bytes.tolist()


@pytest.mark.parametrize("name", FILES)
def test_at_the_moment_that_matters_each_block_lies_where_it_lay(name: str) -> None:
    recording = recording_of(name)
    found = block_history_of(recording)
    blocks, there = found.blocks, recording.moment.blocks
    alive = (blocks.born <= found.moment) & (blocks.born + blocks.life > found.moment)
    held = there.state == State.ALLOCATED
    assert dict(zip(blocks.address[alive].tolist(), blocks.size_bytes[alive].tolist(), strict=True)) == dict(
        zip(there.address[held].tolist(), there.size[held].tolist(), strict=True)
    )
    by_line: Counter[str] = Counter()
    lines = found.facets[0]
    for block, size in zip(lines.of_block[alive].tolist(), blocks.size_bytes[alive].tolist(), strict=True):
        by_line[lines.labels[block]] += size
    expected: Counter[str] = Counter()
    for each in recording.held():
        expected[each.line] += each.size_bytes
    assert by_line == expected
    shown = [by_line[label] for label in lines.labels]
    assert shown == sorted(shown, reverse=True), "the lines that hold most come first"


def test_a_stack_is_the_one_that_was_recorded() -> None:
    recording = recording_of("normal.pickle.gz")
    found = block_history_of(recording)
    stacks, born = found.stacks, found.blocks.born
    for block in (0, len(born) // 2, len(born) - 1):
        entry = int(found.event[born[block]]) - 1
        expected = recording.history.stacks.frames_of(int(recording.history.stack[entry]))
        stack = int(found.blocks.stack[block])
        shown = stacks.frames[stacks.starts[stack] : stacks.starts[stack + 1]].tolist()
        assert [stacks.texts[frame] for frame in shown] == [f"{each.file}:{each.line} {each.name}" for each in expected]


def made_of(
    rows: list[tuple[int, int, int, int]], pools: tuple[int, ...] = (), segments: tuple[Segment, ...] = ()
) -> BlockHistory:
    """The blocks of a made-up recording, of (action, address, bytes, stream), and the private pool of each entry."""
    action, address, size, stream = np.array(rows, np.int64).T
    none = np.full(len(rows), -1, np.int64)
    history = History(
        device=0,
        action=action,
        address=address,
        size=size,
        stream=stream,
        time_us=none,
        stack=none,
        stacks=RecordedStacks(starts=np.zeros(1, np.int64), frames=np.zeros(0, np.int64), table=()),
        segments=segments,
        annotations=(),
        settings={},
        labels=Labels(pool=np.array(pools, np.int64)),
    )
    return block_history_of(Recording.of(history, program_of(history)))


def test_a_block_that_another_stream_still_used_waits() -> None:
    found = made_of(
        [
            (Action.SEGMENT_ALLOC, 0x1000000, 20 * MIB, 0),
            (Action.ALLOC, 0x1000000, 4 * MIB, 0),
            (Action.FREE_REQUESTED, 0x1000000, 4 * MIB, 0),
            (Action.ALLOC, 0x1400000, 4 * MIB, 0),
            (Action.FREE_COMPLETED, 0x1000000, 4 * MIB, 0),
            (Action.ALLOC, 0x1000000, 4 * MIB, 0),
        ]
    )
    allocated, active, _ = levels(found)
    assert found.blocks.wait[0] > 0
    assert not found.blocks.wait[1:].any()
    assert (active - allocated).max() == 4 * MIB
    assert len(found.time_us) == 0, "no time was recorded"
    assert [facet.title for facet in found.facets] == ["your line"]


def test_streams_are_told_apart_and_named() -> None:
    rows = [(Action.SEGMENT_ALLOC, 0x1000000, 20 * MIB, 0), (Action.ALLOC, 0x1000000, 4 * MIB, 0)]
    rows += [(Action.SEGMENT_ALLOC, 0x5000000, 20 * MIB, 0xABC), (Action.ALLOC, 0x5000000, 4 * MIB, 0xABC)]
    found = made_of(rows)
    assert [facet.title for facet in found.facets] == ["your line", "stream"]
    assert found.facets[1].labels == ("default stream", "stream 0xabc")
    assert found.segments.kinds == ("large blocks", "large blocks, stream 0xabc")


def test_private_pools_are_told_apart_and_named() -> None:
    rows = [(Action.SEGMENT_ALLOC, 0x1000000, 20 * MIB, 0), (Action.ALLOC, 0x1000000, 4 * MIB, 0)]
    rows += [(Action.SEGMENT_ALLOC, 0x5000000, 30 * MIB, 0), (Action.ALLOC, 0x5000000, 30 * MIB, 0)]
    found = made_of(rows, (0, 0, 7, 7))
    assert found.facets[1].title == "private pool"
    assert found.facets[1].labels == ("no private pool", "private pool 7")
    assert found.segments.kinds == ("large blocks", "large blocks, private pool 7")


def test_times_begin_with_the_recording_and_never_fall() -> None:
    found = block_history_of(recording_of("normal.pickle.gz"))
    assert len(found.time_us) == len(found.event)
    assert found.time_us[0] == 0
    assert (np.diff(found.time_us) >= 0).all()


def test_the_pool_of_a_segment_is_told_without_labels() -> None:
    """Files before torch 2.11 name pools of segments only, and not of entries."""
    there = Segment(address=0x5000000, size=30 * MIB, stream=0, is_large=True, is_expandable=False, pool=7, blocks=())
    rows = [(Action.SEGMENT_ALLOC, 0x1000000, 20 * MIB, 0), (Action.ALLOC, 0x1000000, 4 * MIB, 0)]
    rows += [(Action.SEGMENT_ALLOC, 0x5000000, 30 * MIB, 0), (Action.ALLOC, 0x5000000, 30 * MIB, 0)]
    found = made_of(rows, segments=(there,))
    assert found.segments.kinds == ("large blocks", "large blocks, private pool 7")
    assert found.facets[1].labels == ("no private pool", "private pool 7")
