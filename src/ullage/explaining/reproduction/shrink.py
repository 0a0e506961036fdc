"""Shortens a failing list of operations by delta debugging: first it removes allocations, then it simplifies sizes.

An allocation is removed together with its free. A function that the caller passes decides whether the rest still fails
in the same way; this module knows nothing about causes or GPUs. Steps are tried in a fixed order, so the same program
gives the same result unless the time limit ends the search.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ullage.base.units import GIB, KIB, MIB
from ullage.recorded.program import Column, Op, Program

_UNITS: Final = (GIB, 256 * MIB, 64 * MIB, 16 * MIB, 4 * MIB, 2 * MIB, MIB, 128 * KIB, 16 * KIB, 4 * KIB, 512)
_MOST_IN_PAIRS: Final = (
    250  # The most allocations for which all pairs are tried; for more allocations, that takes too long.
)
_SPARSE_KEYS_FACTOR: Final = 16
_PROGRESS_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A list of allocations, frees and `empty_cache` calls. The last operation is the allocation that fails."""

    op: Column
    key: Column
    size: Column
    """The requested bytes of each allocation. Other operations ignore it."""
    stream: Column

    def __len__(self) -> int:
        return len(self.op)

    @property
    def keys(self) -> Column:
        """The IDs of the operations that may be removed from the list, in order.

        Frees and the failing allocation are not included.
        """
        return np.asarray(self.key[:-1][self.op[:-1] != Op.FREE], np.int64)

    @property
    def n_allocations(self) -> int:
        """The number of allocations in this list, including the failing one."""
        return int(np.count_nonzero(self.op == Op.ALLOCATE))

    def of_rows(self, rows: Column | npt.NDArray[np.bool_]) -> "Sketch":
        """Return the list with only some of its operations. `rows` contains their indices, or a boolean for each
        operation.
        """
        return Sketch(op=self.op[rows], key=self.key[rows], size=self.size[rows], stream=self.stream[rows])

    def without(self, keys: Column) -> "Sketch":
        """Return the list without the operations that have the given IDs."""
        return self.of_rows(~np.isin(self.key, keys))

    def resized(self, key: int, size_bytes: int) -> "Sketch":
        """Return a copy of the list in which one allocation has a new size."""
        return replace(self, size=np.where((self.key == key) & (self.op == Op.ALLOCATE), size_bytes, self.size))

    def size_of(self, key: int) -> int:
        """Return the requested bytes of the allocation with the given ID. Return 0 for an `empty_cache` call."""
        return int(self.size[(self.key == key) & (self.op != Op.FREE)][0])

    def program(self) -> Program:
        """Return these operations as a `Program`, which the allocator model can simulate."""
        highest = int(self.key.max())
        # Few keys of a long run are left, so a table indexed by all keys would be slower.
        if highest > _SPARSE_KEYS_FACTOR * len(self):
            numbers = np.unique(self.key, return_inverse=True)[1]
        else:
            there = np.zeros(highest + 1, bool)
            there[self.key] = True
            numbers = (np.cumsum(there) - 1)[self.key]
        return Program(op=self.op, key=numbers, size=self.size, stream=self.stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """The result of the search for the shortest list of allocator operations that still reproduces a failure."""

    sketch: Sketch
    trials: int
    """The number of shortened lists of operations that the search tested."""
    finished: bool
    """Whether the search finished before the time limit. If so, removing any operation from the list would prevent the
    failure.
    """


def shrink(
    sketch: Sketch,
    fails: Callable[[Sketch], bool],
    *,
    seconds: float,
    keep_sizes: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> Shrunk:
    """Shorten a failing list of operations: merge allocations, round sizes, and remove operations that are not needed.

    Args:
        sketch: a sketch for which `fails` returns true.
        fails: a function that returns whether a sketch fails as required.
        seconds: the time limit; the smallest sketch so far is returned when it ends.
        keep_sizes: only leave operations out; do not merge allocations or change sizes.
        progress: called with a short text about every second.
    """
    search = _Search(sketch, fails, time.monotonic() + seconds, progress)
    search.run(keep_sizes=keep_sizes)
    return Shrunk(sketch=search.best, trials=search.trials, finished=not search.is_late)


class _LateError(Exception):
    """An exception that ends the shortening of a list of operations at the time limit."""


class _Search:
    def __init__(
        self, sketch: Sketch, fails: Callable[[Sketch], bool], deadline: float, progress: Callable[[str], None]
    ) -> None:
        self.best = sketch
        self.trials = 0
        self.is_late = False
        self._fails = fails
        self._deadline = deadline
        self._progress_at = 0.0
        self._progress = progress

    def run(self, *, keep_sizes: bool) -> None:
        steps = [self._one_stream, self._remove, self._keep_alive]
        if not keep_sizes:
            steps[2:2] = [self._merge_runs, self._merge_pairs]
            steps.append(self._round)
        try:
            while True:
                before = self.best
                for step in steps:
                    step()
                if self.best is before:
                    return
        except _LateError:
            self.is_late = True

    def _try(self, candidate: Sketch) -> bool:
        now = time.monotonic()
        if now > self._deadline:
            raise _LateError
        if now - self._progress_at > _PROGRESS_SECONDS:
            self._progress_at = now
            self._progress(f"{self.best.n_allocations:,} allocations are left after {self.trials:,} trials")
        self.trials += 1
        if not self._fails(candidate):
            return False
        self.best = candidate
        return True

    def _remove(self) -> None:
        chunk = 1 << max(0, len(self.best.keys).bit_length() - 1)
        while True:
            before = self.best
            keys = self.best.keys
            for at in range(0, len(keys), chunk):
                self._try(self.best.without(keys[at : at + chunk]))
            if chunk > 1:
                chunk //= 2
            elif self.best is before:
                return

    def _one_stream(self) -> None:
        streams = np.unique(self.best.stream[self.best.op == Op.ALLOCATE])
        others = streams[streams != 0].tolist()
        if others and not self._try(replace(self.best, stream=np.zeros_like(self.best.stream))):
            for stream in others:
                merged = np.where(self.best.stream == stream, 0, self.best.stream)
                self._try(replace(self.best, stream=merged))

    def _merge_runs(self) -> None:
        chunk = 1 << max(1, len(self.best.keys).bit_length() - 1)
        while chunk > 1:
            keys = self._allocated()
            for at in range(0, len(keys) - 1, chunk):
                run = keys[at : at + chunk]
                if len(run) > 1:
                    self._try_merged(run, run[:1]) or self._try_merged(run, run[-1:])
            chunk //= 2

    def _merge_pairs(self) -> None:
        keys = self._allocated().tolist()
        if len(keys) > _MOST_IN_PAIRS:
            return
        gone: set[int] = set()
        for index, first in enumerate(keys):
            for second in keys[index + 1 :]:
                if first in gone or second in gone:
                    continue
                pair = np.array((first, second), np.int64)
                for kept, dropped in ((0, second), (1, first)):
                    if self._try_merged(pair, pair[kept : kept + 1]):
                        gone.add(dropped)
                        break

    def _try_merged(self, keys: Column, kept: Column) -> bool:
        key = int(kept[0])
        total = sum(self.best.size_of(each) for each in keys.tolist())
        return self._try(self.best.without(keys[keys != key]).resized(key, total))

    def _allocated(self) -> Column:
        return np.asarray(self.best.key[:-1][self.best.op[:-1] == Op.ALLOCATE], np.int64)

    def _keep_alive(self) -> None:
        for key in self.best.key[self.best.op == Op.FREE].tolist():
            self._try(self.best.of_rows((self.best.op != Op.FREE) | (self.best.key != key)))

    def _round(self) -> None:
        keys = self._allocated().tolist()
        for key in sorted(keys, key=lambda key: (-self.best.size_of(key), key)):
            size = self.best.size_of(key)
            for rounder in _rounder(size):
                if self._try(self.best.resized(key, rounder)):
                    break


def _rounder(size: int) -> Iterable[int]:
    for unit in _UNITS:
        if size % unit == 0:
            return
        low = size // unit * unit
        if size >= unit // 2:  # A small allocation must not become a large one.
            yield from (low, low + unit) if low else (unit,)
