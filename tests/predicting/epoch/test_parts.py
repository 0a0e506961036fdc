"""The parts of a foreseen epoch that need no torch, each by itself."""

import random
import time

import numpy as np
import pytest

from ullage.predicting.epoch.composed import Composer
from ullage.predicting.epoch.form import elements, form_of, longest, text_of
from ullage.predicting.epoch.plan import Plan, PlanInOrder
from ullage.predicting.epoch.requests import RequestRows, Template
from ullage.predicting.epoch.result import _growth
from ullage.recorded.allocator.replay import ReplayDevice, replay
from ullage.recorded.program import Op, Program
from ullage.recorded.settings import parse_settings

SETTINGS = parse_settings("", semantics="2.11")
CARD = ReplayDevice(total_bytes=16 << 30, placement="linux")
NONE = np.zeros(0, np.int64)


def test_forms() -> None:
    batch = {"ids": np.zeros((2, 5)), "more": [np.zeros((3, 4)), "text", [1, 2, 3]], "scalar": 7}
    form = form_of(batch)
    assert form == (("ids", (2, 5)), ("more.0", (3, 4)), ("more.1", ()), ("more.2", (3,)), ("scalar", ()))
    assert (elements(form), longest(form)) == (12, 5)
    assert text_of(form) == "ids 2 x 5, more.0 3 x 4, more.2 3"


def columns(*rows: tuple[int, int, int]) -> tuple[np.ndarray, ...]:
    table = np.array(rows, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def step(size: int) -> Template:
    """Frees what the step before kept, and keeps two blocks itself."""
    alloc, free = int(Op.ALLOCATE), int(Op.FREE)
    op, key, sizes = columns((alloc, 0, size), (free, 0, 0), (alloc, 1, 3 * size), (free, 0, 0), (alloc, 2, 700))
    return Template(
        op=op,
        key=key,
        is_own=np.array([True, False, True, True, True]),
        size=sizes,
        stream=np.zeros(5, np.int64),
        age=np.array([1], np.int64),
        place=np.array([0], np.int64),
        births=3,
        survivors=np.array([1, 2], np.int64),
    )


def first_step(size: int) -> Template:
    op, key, sizes = columns((int(Op.ALLOCATE), 0, size), (int(Op.ALLOCATE), 1, 700))
    is_own = np.ones(2, np.bool_)
    return Template(
        op=op, key=key, is_own=is_own, size=sizes, stream=np.zeros(2, np.int64), age=NONE, place=NONE, births=2,
        survivors=np.array([0, 1], np.int64),
    )  # fmt: skip


@pytest.mark.parametrize("options", ["", "expandable_segments:True", "max_split_size_mb:40"])
def test_a_program_in_pieces_is_the_program(options: str) -> None:
    rng = random.Random(5)
    settings = parse_settings(options, semantics="2.11")
    op, key, size = columns((int(Op.ALLOCATE), 0, 5_000_000), (int(Op.ALLOCATE), 1, 900))
    before = RequestRows(op, key, size, np.zeros(2, np.int64))
    steps = [first_step(1_000_000), *(step(rng.randrange(1000, 30_000_000)) for _ in range(300))]
    whole, pieces = (
        Composer(settings=settings, device=CARD, piece_operations=number).levels(
            before, steps, deadline=time.monotonic() + 60
        )
        for number in (1 << 30, 7)
    )
    assert whole.lost_frees == pieces.lost_frees == 0
    assert np.array_equal(whole.allocated_bytes, pieces.allocated_bytes)
    assert np.array_equal(whole.reserved_bytes, pieces.reserved_bytes)
    assert np.array_equal(whole.start_allocated_bytes, pieces.start_allocated_bytes)
    assert len(set(whole.reserved_bytes.tolist())) > 3


def test_levels_are_those_of_the_program() -> None:
    steps = [first_step(2_000_000), step(4_000_000), step(1_000_000)]
    levels = Composer(settings=SETTINGS, device=CARD).levels(RequestRows.joined([]), steps, deadline=1e18)
    alloc, free = int(Op.ALLOCATE), int(Op.FREE)
    rows = [(alloc, 0, 2_000_000), (alloc, 1, 700)]
    rows += [(alloc, 2, 4_000_000), (free, 0, 0), (alloc, 3, 12_000_000), (free, 2, 0), (alloc, 4, 700)]
    rows += [(alloc, 5, 1_000_000), (free, 3, 0), (alloc, 6, 3_000_000), (free, 5, 0), (alloc, 7, 700)]
    op, key, size = (np.ascontiguousarray(column) for column in columns(*rows))
    done = replay(Program(op=op, key=key, size=size, stream=np.zeros(len(rows), np.int64)), SETTINGS, CARD, levels=True)
    assert done.levels is not None
    allocated, reserved = done.levels.allocated_bytes, done.levels.reserved_bytes
    assert levels.allocated_bytes.tolist() == [allocated[a:b].max() for a, b in ((0, 2), (2, 7), (7, 12))]
    assert levels.reserved_bytes.tolist() == [reserved[a:b].max() for a, b in ((0, 2), (2, 7), (7, 12))]


def test_a_step_in_which_memory_runs_out() -> None:
    steps = [first_step(2_000_000), step(4_000_000), step(900_000_000), step(4_000_000)]
    card = ReplayDevice(total_bytes=1 << 30, placement="linux")
    levels = Composer(settings=SETTINGS, device=card).levels(RequestRows.joined([]), steps, deadline=1e18)
    assert levels.ran_out_at == 2
    assert len(levels.allocated_bytes) == 3


def test_the_heaviest_come_first_and_those_that_come_again_twice() -> None:
    keys = np.array([0, 0, 1, 2, 1, 3, 1, -1], np.int64)
    plan = Plan(keys=keys, phases=np.zeros(4, np.int64), weight=np.array([5, 1, 9, 2]), span=np.array([5, 1, 3, 2]))
    plan.start(2, 1)
    chosen = []
    while not plan.is_done:
        unit = plan.choose(0)
        chosen.append(int(keys[unit]))
        plan.ran(chosen[-1])
    assert chosen == [2, 3, 1, 1]
    plan.once_more(2)
    assert keys[plan.choose(0)] == 2


def in_order(keys: list[int], *, done: int = 1, period: int = 1) -> PlanInOrder:
    kinds = max(keys) + 1
    phases, weight = np.zeros(kinds, np.int64), np.arange(kinds, dtype=np.int64)
    plan = PlanInOrder(keys=np.array(keys, np.int64), phases=phases, weight=weight, span=weight)
    plan.start(done, period)
    return plan


def run_in_order(plan: PlanInOrder, *, making: tuple[int, ...] = ()) -> list[int]:
    """The units that a plan chooses, of which some make a graph."""
    chosen: list[int] = []
    while not plan.is_done:
        chosen.append(plan.choose(len(chosen) % plan.period))
        if chosen[-1] in making:
            assert plan.graph_made(chosen[-1])
        else:
            plan.ran(int(plan.keys[chosen[-1]]))
    return chosen


def test_where_graphs_are_made_the_order_is_the_epochs_and_what_was_run_is_passed_by() -> None:
    keys = [0, 1, 0, 0, 0, 1, 1, 2, 0, 1, 2, 0, 0, 1]
    plan = in_order(keys)
    # The graph that 7 makes is there for what comes after it: each key is wanted twice again, or as often as it comes.
    assert run_in_order(plan, making=(7,)) == [1, 2, 3, 5, 7, 8, 9, 10, 11, 13]
    assert plan.keys.tolist() == [*keys[:8], *(key + 3 for key in keys[8:])]
    assert plan.weight.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_cycle_of_accumulation_is_run_as_a_whole() -> None:
    assert run_in_order(in_order([0, 0, 0, 0, 0, 0, 0, 1], done=2, period=2)) == [2, 3, 6, 7]


def test_a_graph_that_the_order_may_not_make_is_told() -> None:
    plan = in_order([0, 1, 2, 3, 1])
    plan.is_hurried = True
    assert plan.choose(0) == 3
    assert not plan.graph_made(3), "1 and 2 come before, and may have had one made"
    assert not plan.graph_made(2), "it lies before the other"


def test_growth_is_of_the_floor() -> None:
    rng = random.Random(1)
    flat = np.array([1000 * rng.randrange(100) for _ in range(400)], np.int64)
    assert _growth(flat) == 0
    assert _growth(np.sort(flat)[:20]) == 0
    rising = flat + 2048 * np.arange(400)
    assert 1900 < _growth(rising) < 2200
