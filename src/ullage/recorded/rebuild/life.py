"""Matches the recorded frees with the recorded allocations at the same address."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.recorded.history import Action, History
from ullage.recorded.program import Column, is_one_of

REQUESTS: Final = (Action.ALLOC, Action.OOM)
TAKEN: Final = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
GIVEN_BACK: Final = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLives:
    """The trace entries that allocate or free blocks, each with the previous entry at the same address."""

    row: Column
    """The indices of the trace entries that allocate or free a block, sorted by address and then by time."""
    address: Column
    action: Column
    previous: Column
    """The action of the previous trace entry at the same address, or -1."""
    previous_row: Column

    @classmethod
    def of(cls, history: History) -> "BlockLives":
        rows = np.flatnonzero(is_one_of(history.action, (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)))
        rows = rows[np.argsort(history.address[rows], kind="stable")]
        address, action = history.address[rows], history.action[rows]
        same = np.concatenate([np.zeros(min(1, len(rows)), bool), address[1:] == address[:-1]])
        return cls(
            row=rows,
            address=address,
            action=action,
            previous=np.where(same, np.roll(action, 1), -1),
            previous_row=np.where(same, np.roll(rows, 1), -1),
        )

    def are_allocated(self, addresses: Column) -> list[bool]:
        """Return, for each address, whether any trace entry allocates a block there."""
        before = np.append(0, np.cumsum(self.action == Action.ALLOC))
        first, last = np.searchsorted(self.address, addresses), np.searchsorted(self.address, addresses, side="right")
        found: list[bool] = (before[first] < before[last]).tolist()
        return found

    def freed_unseen(self) -> Column:
        """Return the trace entries that free a block whose allocation was not recorded."""
        return np.asarray(self.row[(self.previous < 0) & (self.action != Action.ALLOC)], np.int64)

    def reusable_from(self, length: int) -> Column:
        """Return the index of the trace entry after which the memory of each freed block can be reused.

        A free can have two entries, `free_requested` and `free_completed`. The memory can be reused after
        `free_completed`. If this entry is missing, the result is `length`.
        """
        found = np.arange(length)
        found[self.row[self.action == Action.FREE_REQUESTED]] = length
        completes = (self.action == Action.FREE_COMPLETED) & (self.previous == Action.FREE_REQUESTED)
        found[self.previous_row[completes]] = self.row[completes]
        return found
