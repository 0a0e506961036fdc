"""The time of a run's memory peak, and the blocks that are alive at that time."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ullage.base.block_role import Role
from ullage.gpu.tracing.journal.stacks import JournalStacks
from ullage.gpu.tracing.source import Line
from ullage.predicting.prediction.avoidable.assignment import Assignment
from ullage.predicting.prediction.avoidable.gain import PeaksWithout
from ullage.predicting.prediction.data.avoidable_memory import Avoidable, AvoidableKind
from ullage.predicting.prediction.measurement.trace import Memory

LEAST_SHARE: Final = 0.01
"""The smallest fraction of the memory peak that the report of avoidable memory shows."""


@dataclass(frozen=True, kw_only=True)
class PeakMoment:
    """The time at which allocated memory reaches its peak, and the blocks that are alive then."""

    memory: Memory
    stacks: JournalStacks
    index: int
    """The index of the allocator event at the peak of allocated memory."""
    allocated_bytes: int
    reserved_bytes: int
    """The run's peak of reserved memory, in bytes."""
    step_ends: Sequence[int]
    named: set[int] = field(default_factory=set)
    """The indices of the memory blocks that already belong to a report row."""

    def has(self, block: int) -> bool:
        """Return whether a memory block is alive at the memory peak."""
        lives = self.memory.lives
        return bool(lives.born[block] <= self.index < lives.died[block])

    def unnamed(self, *, role: Role | None = None) -> list[int]:
        """Return the blocks that are alive at the memory peak and belong to no report row yet."""
        lives, roles = self.memory.lives, self.memory.roles
        is_alive = (lives.born <= self.index) & (lives.died > self.index)
        alive = np.flatnonzero(is_alive & (lives.entries["device"] == self.memory.device)).tolist()
        return [block for block in alive if block not in self.named and (role is None or roles[block] is role)]

    def size_of(self, blocks: Sequence[int]) -> int:
        """Return the total size of memory blocks in bytes, as rounded up by the allocator."""
        return int(self.memory.lives.entries["size"][list(blocks)].sum()) if blocks else 0

    def row(
        self,
        kind: AvoidableKind,
        blocks: Sequence[int],
        peaks: PeaksWithout | None,
        *,
        evidence: str,
        remedy: str,
        names: Sequence[str] = (),
        hold: Assignment | None = None,
        module: str | None = None,
    ) -> Avoidable:
        """Return a report row for blocks that are alive at the memory peak.

        The source line of the row is the line that allocated most of their bytes.

        Args:
            kind: the kind of avoidable memory.
            blocks: the numbers of the blocks.
            peaks: the peaks of the run without them; None if these are not known.
            evidence: a sentence with the evidence that the memory can be avoided.
            remedy: a sentence with the change to make in the source.
            names: the variables that hold the blocks.
            hold: the statement that assigns these variables.
            module: the name of the module that allocated the blocks; None: the module of the largest block.
        """
        self.named.update(blocks)
        by_line: Counter[Line | None] = Counter()
        for block in blocks:
            by_line[self.line_of(block)] += self.size_of([block])
        line = by_line.most_common(1)[0][0] if by_line else None
        largest = max(blocks, key=lambda block: self.size_of([block]))
        reserved = peaks.reserved_bytes if peaks is not None else None
        return Avoidable(
            kind=kind,
            peak_bytes=self.size_of(blocks),
            gain_bytes=self.allocated_bytes - peaks.allocated_bytes if peaks is not None else None,
            gain_reserved_bytes=None if reserved is None else self.reserved_bytes - reserved,
            blocks=len(blocks),
            names=tuple(names),
            file=line.file if line else None,
            line=line.line if line else None,
            function=line.function if line else None,
            module=self.module_of(largest) if module is None else module,
            hold_file=hold.file if hold else None,
            hold_line=hold.first if hold else None,
            evidence=evidence,
            remedy=remedy,
        )

    def is_worth(self, size_bytes: int) -> bool:
        """Return whether a number of bytes is large enough for a report row."""
        return size_bytes >= max(1, LEAST_SHARE * self.allocated_bytes)

    def line_of(self, block: int) -> Line | None:
        """Return the user's source line that allocated a memory block, or None if it is unknown."""
        return self.memory.line_of(int(self.memory.lives.born[block]))

    def stack_of(self, block: int) -> list[Line]:
        """Return the call stack of an allocation, innermost frame first. It is empty if call stacks are not
        recorded.
        """
        if not self.stacks.are_recorded:
            return []
        return self.stacks.stack(int(self.memory.lives.entries["stack"][block]))

    def module_of(self, block: int) -> str:
        """Return the dotted name of the module that allocated a memory block, such as `encoder.layers.0`."""
        return self.memory.module_names[int(self.memory.lives.entries["module"][block])]

    def step_of(self, index: int) -> int:
        """Return the training step in which an allocator event happened."""
        return bisect_left(self.step_ends, index) + 1
