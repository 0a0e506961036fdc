"""What counts as equal when a recording from a real card is compared with one from the emulated card."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.real_cards.compare import clears_of, compared, equal_events, events_of
from ullage.recorded.history import Action, Frame, History
from ullage.recorded.snapshot.snapshot import load_snapshot

DATA = Path(__file__).parents[1] / "snapshots"


@pytest.fixture(scope="module")
def history() -> History:
    (found,) = load_snapshot(DATA / "normal.pickle.gz").devices.values()
    return found


def moved(history: History, by: int) -> History:
    """The same recording with everything elsewhere."""
    segments = tuple(
        replace(
            segment,
            address=segment.address + by,
            blocks=tuple(replace(block, address=block.address + by) for block in segment.blocks),
        )
        for segment in history.segments
    )
    return replace(history, address=history.address + by, segments=segments)


def test_addresses_as_such_do_not_count(history: History) -> None:
    found = compared(history, moved(history, 1 << 30))
    assert found.events.is_whole
    assert found.segments.is_whole
    assert found.segments.of == len(history.segments)
    assert all(figure.is_equal for figure in found.figures.values())
    assert found.differs == ""


def test_another_size_is_one_event_and_its_segment(history: History) -> None:
    row = int(np.flatnonzero(history.action == Action.ALLOC)[-1])
    size = history.size.copy()
    size[row] += 512
    found = compared(history, replace(history, size=size))
    assert found.events.of - found.events.equal == 1
    number = events_of(history)[row]
    size = number[1]
    assert f"event {row} is alloc of {size:,} bytes, but in the emulation alloc of {size + 512:,}" in found.differs


def test_a_free_of_another_block_of_that_size_is_said(history: History) -> None:
    action, size, address = history.action, history.size, history.address.copy()
    frees = np.flatnonzero((action == Action.FREE_COMPLETED) & ~np.array(clears_of(history)))
    one, other = next(
        (a, b)
        for a, b in zip(frees[:-1].tolist(), frees[1:].tolist(), strict=True)
        if size[a] == size[b] and address[a] != address[b]
    )
    address[[one, other]] = address[[other, one]]
    found = compared(history, replace(history, address=address))
    assert found.events.is_whole
    assert "of the block that event" in found.differs


@pytest.mark.parametrize(
    ("frame", "counts"),
    [
        (Frame("at::autocast::clear_cache()", "??", 0), False),
        (Frame("__exit__", "/site-packages/torch/amp/autocast_mode.py", 390), False),
        (Frame("__exit__", "C:\\site-packages\\torch\\amp\\autocast_mode.py", 390), False),
        (Frame("__exit__", "/somewhere/train.py", 3), True),
    ],
)
def test_the_order_in_which_autocast_frees_its_copies_does_not_count(
    frame: Frame, counts: bool, history: History
) -> None:
    first = next(
        row
        for row in range(len(history) - 3)
        if history.action[row : row + 4].tolist() == [Action.FREE_REQUESTED, Action.FREE_COMPLETED] * 2
        and history.size[row] != history.size[row + 2]
    )
    rows, turned = slice(first, first + 4), [first + 2, first + 3, first, first + 1]
    stack, stacks = history.stack.copy(), history.stacks
    stack[rows] = len(stacks.starts) - 1
    one = replace(
        history,
        stack=stack,
        stacks=replace(
            stacks,
            table=(*stacks.table, frame),
            frames=np.append(stacks.frames, len(stacks.table)),
            starts=np.append(stacks.starts, len(stacks.frames) + 1),
        ),
    )
    address, size = one.address.copy(), one.size.copy()
    address[rows], size[rows] = address[turned], size[turned]
    found = compared(one, replace(one, address=address, size=size))
    assert found.events.is_whole is not counts
    said = "2 of autocast's copies of weights are freed in another order"
    assert found.differs == said if not counts else said not in found.differs


def test_a_block_in_another_state_is_another_segment(history: History) -> None:
    first, *rest = history.segments
    blocks = (replace(first.blocks[0], state="active_pending_free"), *first.blocks[1:])
    assert first.blocks[0].state != "active_pending_free"
    found = compared(history, replace(history, segments=(replace(first, blocks=blocks), *rest)))
    assert found.segments.of - found.segments.equal == 1
    assert f"1 segments differ, the first has {first.size:,} bytes" in found.differs


def test_a_shorter_recording_is_equal_up_to_where_it_ends(history: History) -> None:
    events = events_of(history)
    assert equal_events(events, events[:-10]) == len(events) - 10
    assert equal_events(events, events[1:]) < len(events) - 1
