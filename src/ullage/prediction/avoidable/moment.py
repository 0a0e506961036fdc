"""The fullest moment of a run, and what the rows need to know of the blocks that are alive at it."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ullage.prediction.avoidable.share import LEAST_SHARE
from ullage.prediction.measurement.trace import Memory
from ullage.tracing.journal.stacks import JournalStacks
from ullage.tracing.source import Line


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The moment of the allocated peak."""

    memory: Memory
    stacks: JournalStacks
    index: int
    """The entry of the journal that reached the peak."""
    allocated_bytes: int
    reserved_bytes: int
    """The peak of reserved memory, at whichever moment."""
    step_ends: Sequence[int]

    def has(self, block: int) -> bool:
        """Tell whether a block is alive."""
        lives = self.memory.lives
        return bool(lives.born[block] <= self.index < lives.died[block])

    def alive(self) -> np.ndarray:
        """Return the numbers of all blocks of the device that are alive."""
        lives = self.memory.lives
        is_alive = (lives.born <= self.index) & (lives.died > self.index)
        return np.flatnonzero(is_alive & (lives.entries["device"] == self.memory.device))

    def size_of(self, blocks: Sequence[int]) -> int:
        """Return the bytes of blocks, after rounding."""
        return int(self.memory.lives.entries["size"][list(blocks)].sum()) if blocks else 0

    def is_worth(self, size_bytes: int) -> bool:
        """Tell whether bytes are enough for a row."""
        return size_bytes >= max(1, LEAST_SHARE * self.allocated_bytes)

    def gain_reserved(self, reserved_bytes: int | None) -> int | None:
        """Return by how much another peak of reserved memory is lower."""
        return None if reserved_bytes is None else self.reserved_bytes - reserved_bytes

    def line_of(self, block: int) -> Line | None:
        """Return the user's line that allocated a block."""
        return self.memory.line_of(int(self.memory.lives.born[block]))

    def stack_of(self, block: int) -> list[Line]:
        """Return the stack of a block's allocation, innermost first; empty where none is recorded."""
        if not self.stacks.are_recorded:
            return []
        return self.stacks.stack(int(self.memory.lives.entries["stack"][block]))

    def module_of(self, block: int) -> str:
        """Return the dotted name of the module that allocated a block."""
        return self.memory.module_names[int(self.memory.lives.entries["module"][block])]

    def step_of(self, index: int) -> int:
        """Return the number of the step in which something was; what follows a step's end is the next one's."""
        return bisect_left(self.step_ends, index) + 1
