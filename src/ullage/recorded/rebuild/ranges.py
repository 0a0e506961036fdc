"""A sorted collection of address ranges that do not overlap."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ranges(Generic[T]):
    """A sorted collection of address ranges (start, stop, value) that do not overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._rest: dict[int, tuple[int, T]] = {}

    def __iter__(self) -> Iterator[tuple[int, int, T]]:
        return ((start, *self._rest[start]) for start in self._starts)

    def put(self, start: int, stop: int, value: T) -> None:
        """Add an address range. It replaces earlier ranges where they overlap."""
        self.cut(start, stop)
        self._starts.insert(bisect_left(self._starts, start), start)
        self._rest[start] = stop, value

    def cut(self, start: int, stop: int) -> list[tuple[int, int, T]]:
        """Remove and return everything between two addresses. Ranges that cross an end are split."""
        found = list(self.overlapping(start, stop))
        if not found:
            return []
        first = bisect_left(self._starts, found[0][0])
        beside = []
        for low, high, value in found:
            del self._rest[low]
            pieces = ((low, min(high, start)), (max(low, stop), high))
            beside += [(begin, end, value) for begin, end in pieces if begin < end]
        self._starts[first : first + len(found)] = [begin for begin, _, _ in beside]
        self._rest |= {begin: (end, value) for begin, end, value in beside}
        return [(max(low, start), min(high, stop), value) for low, high, value in found]

    def overlapping(self, start: int, stop: int) -> Iterator[tuple[int, int, T]]:
        """Yield the address ranges that overlap the addresses from `start` to `stop`."""
        for index in range(max(0, bisect_right(self._starts, start) - 1), bisect_left(self._starts, stop)):
            low = self._starts[index]
            high, value = self._rest[low]
            if high > start:
                yield low, high, value
