"""Growth is told where blocks of several steps live on, not where batches of random sizes happen to become larger."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest

from ullage.base.block_role import Role
from ullage.base.growth import Growing, growing
from ullage.base.units import KIB, MIB
from ullage.gpu.tracing.journal import ENTRY, Entries, EntryKind
from ullage.gpu.tracing.source import Line
from ullage.predicting.prediction.measurement.trace import (
    Levels,
    Memory,
    Requests,
    is_level,
    is_settled,
    second_keeps,
    steps_of,
)
from ullage.predicting.prediction.observation.role import lives_of

STATE, BATCH, KEPT = Line("train.py", 3), Line("train.py", 7), Line("train.py", 9)


@dataclass(slots=True)
class Run:
    """A journal that is made up, block by block."""

    rows: list[tuple[int, int, int]] = field(default_factory=list)
    lines: dict[int, Line] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    _sizes: dict[int, int] = field(default_factory=dict)
    _next_address: int = 512

    def take(self, size: int, line: Line) -> int:
        address, self._next_address = self._next_address, self._next_address + size
        self._sizes[address] = size
        self.lines[len(self.rows)] = line
        self._add(EntryKind.ALLOC, address, size)
        return address

    def free(self, address: int) -> None:
        self._add(EntryKind.FREE, address, self._sizes.pop(address))

    def end_step(self) -> None:
        self.ends.append(len(self.rows))
        self._add(EntryKind.MARK, 0, 0)

    def _add(self, kind: int, address: int, size: int) -> None:
        self.rows.append((kind, address, size))
        self.allocated.append(sum(self._sizes.values()))

    def entries(self) -> Entries:
        entries = np.zeros(len(self.rows), ENTRY)
        for column, values in zip(("kind", "address", "size"), zip(*self.rows, strict=True), strict=True):
            entries[column] = values
        return entries

    def growth(self) -> Growing[Line | None] | None:
        lives = lives_of(self.entries())
        memory = Memory(
            device=0,
            lives=lives,
            roles=[Role.UNKNOWN] * len(lives.born),
            requests=Requests(bytes_by_index={}, line_of=self.lines.get),
            backward_lines=(),
        )
        steps = self.steps()
        return growing(
            memory.step_blocks(self.ends),
            [step.end_allocated_bytes for step in steps],
            [step.peak_allocated_bytes for step in steps],
        )

    def steps(self) -> list:
        level = np.array(self.allocated, np.int64)
        levels = Levels(index=np.arange(len(level)), allocated=level, reserved=level)
        return steps_of(levels, self.ends, [int(level[end]) for end in self.ends], [], len(self.rows))


def train(
    sizes: Iterator[int], steps: int, *, window: int = 1, leak: Callable[[int, int], int] = lambda step, size: 0
) -> Run:
    """Train: a batch takes the place of the one `window` steps before, and `leak` says what else a step keeps."""
    run = Run()
    held: list[int] = []
    for step in range(1, steps + 1):
        size = next(sizes)
        held.append(run.take(size, BATCH))
        if step == 1:
            run.take(100 * MIB, STATE)
        activation = run.take(3 * size, BATCH)
        if kept := leak(step, size):
            run.take(kept, KEPT)
        if len(held) > window:
            run.free(held.pop(0))
        run.free(activation)
        run.end_step()
    return run


def any_sizes(seed: int) -> Iterator[int]:
    chance = random.Random(seed)
    while True:
        yield chance.randrange(1, 64) * MIB


@pytest.mark.parametrize(("steps", "window"), [(4, 1), (4, 2), (6, 1), (6, 2), (6, 3), (9, 1), (9, 2), (9, 3)])
def test_batches_of_random_sizes_are_no_growth(steps: int, window: int) -> None:
    """In none of a thousand runs, though the ends of the last steps rise in one of 24."""
    assert [seed for seed in range(1000) if train(any_sizes(seed), steps, window=window).growth()] == []


LEAKS = {
    "constant": lambda step, size: 5 * MIB,
    "small": lambda step, size: 8 * KIB,
    "as the batch": lambda step, size: size // 2,
    "every second step": lambda step, size: 5 * MIB if step % 2 else 0,
    "every other second step": lambda step, size: 0 if step % 2 else 5 * MIB,
}


@pytest.mark.parametrize("how", LEAKS)
@pytest.mark.parametrize("window", [1, 2])
def test_a_planted_leak_is_found_in_nine_steps(how: str, window: int) -> None:
    for seed in range(100):
        run = train(any_sizes(seed), 9, window=window, leak=LEAKS[how])
        found = run.growth()
        assert found is not None, seed
        assert found.line == KEPT
        if how == "constant":
            assert found.bytes_per_step == 5 * MIB


def test_four_steps_are_enough_where_the_ends_rise_evenly() -> None:
    found = train(iter([8 * MIB] * 4), 4, leak=LEAKS["constant"]).growth()
    assert found is not None
    assert found.bytes_per_step == 5 * MIB
    assert train(iter([8 * MIB] * 4), 4, window=2).growth() is None


@pytest.mark.parametrize("odd", [False, True])
def test_a_step_that_keeps_something_is_noticed_though_the_next_keeps_nothing(odd: bool) -> None:
    """Of batches of one size: the second step's is still there after the third, the third's is seen in the levels."""
    run = train(iter([8 * MIB] * 4), 3 + odd, leak=lambda step, size: 5 * MIB if step == 2 + odd else 0)
    assert is_settled(run.steps())
    assert second_keeps(run.entries(), run.ends, 0) is not odd
    assert is_level(run.steps()) is not odd
    plain = train(iter([8 * MIB] * 3), 3)
    assert is_level(plain.steps())
    assert not second_keeps(plain.entries(), plain.ends, 0)
