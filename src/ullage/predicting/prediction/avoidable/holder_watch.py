"""Record before each training pass which variables hold memory of earlier passes.

The record is text, because additional Python objects would change when Python collects garbage.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ullage.gpu.tracing.journal import Entries, EntryKind, Journal
from ullage.predicting.prediction.avoidable.moment import LEAST_SHARE
from ullage.training.ownership.holders import BlockHolder, holders_at
from ullage.training.ownership.holding import HolderKind

if TYPE_CHECKING:
    from ullage.predicting.prediction.observation.observer import Observer

# In later passes the same variables hold memory.
_MOST_LOOKS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHolder:
    """The variable or object that holds a memory block at the time of an allocator event."""

    index: int
    address: int
    holder: BlockHolder


class HolderWatch:
    """Record which variables hold each memory block. Call `look` before each forward pass."""

    def __init__(self, journal: Journal, observer: "Observer") -> None:
        self._journal = journal
        self._observer = observer
        self._last_backward = -1
        self._looks = 0
        self._lines: list[str] = []

    def look(self) -> None:
        """Record which variables hold each memory block, if a backward pass has ended since the last record."""
        ends = self._observer.moments.backward_ends
        if not ends or ends[-1] == self._last_backward or self._looks == _MOST_LOOKS:
            return
        self._last_backward = ends[-1]
        entries = self._journal.entries()
        wanted = self._left_alive(entries, max(ends[-1], *self._observer.step_ends[-1:], 0))
        least = int(LEAST_SHARE * entries["allocated"].max(initial=0))
        if sum(wanted.values()) < least:
            return
        self._looks += 1
        index = len(entries)
        for address, holder in holders_at(wanted, rest_bytes=least - 1).items():
            self._lines.append(json.dumps([index, address, asdict(holder)]))

    def seen(self) -> Iterator[SeenHolder]:
        """Yield the recorded variables and objects that hold memory blocks."""
        for line in self._lines:
            index, address, fields = json.loads(line)
            fields |= {"kind": HolderKind(fields["kind"]), "others": tuple(fields["others"])}
            yield SeenHolder(index=index, address=address, holder=BlockHolder(**fields))

    def _left_alive(self, entries: Entries, limit: int) -> dict[int, int]:
        starts = self._observer.moments.forward_starts
        if not starts:
            return {}
        kinds = entries["kind"]
        events = np.flatnonzero((kinds == EntryKind.ALLOC) | (kinds == EntryKind.FREE))
        addresses, last = np.unique(entries["address"][events][::-1], return_index=True)
        last = events[len(events) - 1 - last]
        is_left = (kinds[last] == EntryKind.ALLOC) & (last <= limit)
        is_left &= (last > starts[0]) | np.isin(addresses, np.array(self._observer.input_addresses(), np.uint64))
        is_left &= ~np.isin(addresses, np.array(self._observer.owned_addresses(), np.uint64))
        is_left &= ~_are_marked(entries, addresses, last)
        sizes = entries["size"][last]
        return dict(zip(addresses[is_left].tolist(), sizes[is_left].tolist(), strict=True))


# Marks that are older than the block do not count, because the allocator reuses addresses.
def _are_marked(entries: Entries, addresses: np.ndarray, born: np.ndarray) -> np.ndarray:
    marks = np.flatnonzero(entries["kind"] == EntryKind.WORKSPACE)
    latest = dict(zip(entries["address"][marks].tolist(), marks.tolist(), strict=True))
    return np.array([latest.get(address, -1) for address in addresses.tolist()], np.int64) > born
