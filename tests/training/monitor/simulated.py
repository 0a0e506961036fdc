"""A training loop's memory as plain numbers, for a `Monitor` that watches hundreds of thousands of steps in seconds.

No tensor is made: a loop says which blocks it takes and frees, and a monitor reads the levels of them in place of the
allocator's statistics. Block lists do not exist here, so that the rule for levels decides alone.
"""

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from ullage.training.monitor import judge
from ullage.training.monitor.finding import MonitorFinding
from ullage.training.monitor.monitor import Monitor

STEPS = 200_000
KIB, MIB = 1 << 10, 1 << 20


class NoLists:
    """What `GrowthEvidence` is where blocks cannot be listed."""

    is_possible = False
    is_complete = True

    def __init__(self, device: int, stride: int) -> None:
        """Take what `GrowthEvidence` takes."""

    def start(self, step: int = 0) -> None:
        """Do nothing."""

    stop = sample = start

    def lines(self, *, by_blocks: bool) -> tuple[tuple[str, int], ...]:
        """Return no line."""
        return ()


@dataclass(slots=True)
class Loop:
    """The memory of a training loop: a state that stays, the batch of the last step, and what the loop keeps."""

    steps: int = STEPS
    seed: int = 0
    monitor: Monitor = field(default_factory=lambda: Monitor(holders=False, log=lambda line: None))
    said: list[MonitorFinding] = field(default_factory=list)
    bytes: int = 100 * MIB
    blocks: int = 300
    peak: int = 0
    batch: tuple[int, int] = (0, 0)
    chance: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        """Give the monitor these levels to read."""
        self.chance.seed(self.seed)
        self.monitor._read, self.monitor._index = self.statistics, 0
        self.monitor._judge._notify = self.said.append

    def statistics(self, device: int) -> dict[str, Any]:
        """Return what the allocator would say."""
        now = {"current": self.bytes}
        return {
            "requested_bytes": {"all": now},
            "allocation": {"all": {"current": self.blocks}},
            "reserved_bytes": {"all": {"current": self.peak}},
            "allocated_bytes": {"all": {"peak": self.peak} | now},
        }

    def keep(self, n_bytes: int, blocks: int = 1) -> None:
        """Allocate blocks that stay; give them back with negative numbers."""
        self.bytes += n_bytes
        self.blocks += blocks

    def step(self, n_bytes: int = 4 * MIB, blocks: int = 2, activations: int = 4) -> None:
        """Take a step: its batch takes the place of the one before."""
        self.keep(n_bytes - self.batch[0], blocks - self.batch[1])
        self.batch = (n_bytes, blocks)
        self.peak = max(self.peak, self.bytes + activations * n_bytes)
        self.monitor.step()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Enter a phase of the monitor."""
        with self.monitor.phase(name):
            yield

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the steps, as long as there are any left."""
        while self.monitor.steps < self.steps:
            yield self.monitor.steps

    def random_batch(self) -> None:
        """Take a step of a random length, with as many blocks as any."""
        self.step(self.chance.randrange(64 * KIB, 16 * MIB))


def run(loop: Callable[[Loop], object], *, steps: int = STEPS, seed: int = 0) -> Loop:
    """Run a loop and return it, with what its monitor has said."""
    with mock.patch.object(judge, "GrowthEvidence", NoLists), mock.patch.object(gc, "isenabled", return_value=False):
        made = Loop(steps=steps, seed=seed)
        with made.monitor:
            loop(made)
    return made
