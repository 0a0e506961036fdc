"""The point in time at which a run has the most memory allocated, and facts about the blocks that are alive then."""

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
"""The smallest fraction of the memory peak that gets a row in the report of avoidable memory."""


@dataclass(frozen=True, kw_only=True)
class PeakMoment:
    """The point in time at which allocated memory reaches its peak."""

    memory: Memory
    stacks: JournalStacks
    index: int
    """The index, in the record of allocations, of the entry at which allocated memory reached its peak."""
    allocated_bytes: int
    reserved_bytes: int
    """The peak of reserved memory over the whole run, in bytes."""
    step_ends: Sequence[int]
    named: set[int] = field(default_factory=set)
    """The indices of the memory blocks that a row of the report already counts. No second row counts these blocks."""

    def has(self, block: int) -> bool:
        """Return whether a memory block is alive at the memory peak."""
        lives = self.memory.lives
        return bool(lives.born[block] <= self.index < lives.died[block])

    def unnamed(self, *, role: Role | None = None) -> list[int]:
        """Return the device's memory blocks that are alive at the peak and that no row of the report counts yet. If a
        role, such as parameters, is given, return only blocks with that role.
        """
        lives, roles = self.memory.lives, self.memory.roles
        is_alive = (lives.born <= self.index) & (lives.died > self.index)
        alive = np.flatnonzero(is_alive & (lives.entries["device"] == self.memory.device)).tolist()
        return [block for block in alive if block not in self.named and (role is None or roles[block] is role)]

    def size_of(self, blocks: Sequence[int]) -> int:
        """Return the total size of the given memory blocks in bytes, after the allocator's rounding."""
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
        """Return the `Avoidable` row for blocks that are alive at the peak, and record that these blocks have a row.

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
        """Return whether a number of bytes is large enough for a row in the report of avoidable memory."""
        return size_bytes >= max(1, LEAST_SHARE * self.allocated_bytes)

    def line_of(self, block: int) -> Line | None:
        """Return the line of the user's code that allocated a memory block; None if no such line is known."""
        return self.memory.line_of(int(self.memory.lives.born[block]))

    def stack_of(self, block: int) -> list[Line]:
        """Return the call stack of a memory block's allocation, innermost frame first; empty if call stacks are not
        recorded.
        """
        if not self.stacks.are_recorded:
            return []
        return self.stacks.stack(int(self.memory.lives.entries["stack"][block]))

    def module_of(self, block: int) -> str:
        """Return the dotted name of the module that allocated a memory block, such as `encoder.layers.0`."""
        return self.memory.module_names[int(self.memory.lives.entries["module"][block])]

    def step_of(self, index: int) -> int:
        """Return the number of the training step that contains an index in the record of allocations. An index after
        the end of a step belongs to the next step.
        """
        return bisect_left(self.step_ends, index) + 1
