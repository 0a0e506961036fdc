"""The forward line behind what backward allocates: its threads have no frames of Python.

Autograd runs operations in the reverse order of forward. Where C++ frames name them (`AddmmBackward0::apply`, and in
forward `at::_ops::addmm`), the n-th from the end of one belongs to the n-th of the other. Without such names lives tell
less surely: what an operation has kept for backward is freed when its own part of backward has run.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.analysis.recording import Recording, users_frame
from ullage.analysis.role.life import NEVER, KeyLives, Passes, passes_of
from ullage.analysis.role.maker import Pass, makers_of
from ullage.analysis.role.role import Sureness
from ullage.history import RecordedStacks
from ullage.program import Column

_BACKWARD: Final = re.compile(r"(\w+?)Backward(?:All)?\d*(?:<.*>)?::apply\b")
_FORWARD: Final = re.compile(r"\bat::_ops::(\w+?)::(?:call|redispatch)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardLines:
    """The stack in forward for blocks of backward: columns by the program's key."""

    stack: Column
    """-1: not known."""
    sureness: Column


@dataclass(frozen=True, slots=True)
class _Call:
    """One operation: its names without underscores, the keys that it allocated, and its stack."""

    names: frozenset[str]
    keys: tuple[int, ...]
    stack: int


def forward_lines_of(recording: Recording) -> ForwardLines:
    """Return the forward stack of every block that backward allocated without a line of the user's."""
    keys = len(recording.rebuilt.size_of_key)
    makers = makers_of(recording.history.stacks)
    own = recording.rebuilt.stack_of_key
    part = makers.part[own]
    lives = KeyLives.of(recording.program, keys)
    passes = passes_of(lives, part, np.asarray(makers.begins_backward[own] & (part == Pass.OUTSIDE), bool))
    found = _Found(recording, lives, passes, part)
    stack, sureness = np.full(keys, -1, np.int64), np.full(keys, Sureness.GUESS, np.int64)
    for key, forward, sure in found.pairs():
        stack[key], sureness[key] = forward, sure
    return ForwardLines(stack=stack, sureness=sureness)


class _Found:
    def __init__(self, recording: Recording, lives: KeyLives, passes: Passes, part: Column) -> None:
        self._stacks: RecordedStacks = recording.history.stacks
        self._stack = recording.rebuilt.stack_of_key
        self._lives, self._passes, self._part = lives, passes, part
        self._names: dict[int, tuple[frozenset[str], str, bool]] = {}

    def pairs(self) -> Iterator[tuple[int, int, Sureness]]:
        """Yield blocks of backward, each with a stack of forward and how sure that is."""
        order, born = self._lives.order, self._lives.born[self._lives.order]
        begin = 0
        for start, end in zip(self._passes.backward_starts.tolist(), self._passes.backward_ends.tolist(), strict=True):
            low, high = np.searchsorted(born, [start, end], side="left").tolist()
            before = order[begin:low].tolist()
            inside = [key for key in order[low : high + 1].tolist() if self._part[key] == Pass.BACKWARD]
            begin = high + 1
            kept = [key for key in before if self._has_line(key)]
            yield from self._of_span(kept, [key for key in inside if not self._has_line(key)], end)

    def _of_span(self, forward: Sequence[int], backward: Sequence[int], end: int) -> Iterator[tuple[int, int, Sureness]]:
        told = dict(self._by_operation(forward, backward))
        by_life = self._by_life(forward, end)
        for key in backward:
            if key in told:
                yield key, told[key], Sureness.LIKELY
            elif (stack := by_life(int(self._lives.born[key]))) >= 0:
                yield key, stack, Sureness.GUESS

    def _by_operation(self, forward: Sequence[int], backward: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Match operations of backward with those of forward, the last with the first."""
        nodes = list(self._nodes(backward))
        calls = list(self._calls(forward))
        for name in dict.fromkeys(name for name, _ in nodes if name):
            own = [keys for other, keys in nodes if other == name]
            called = [call for call in calls if _is_called(name, call.names)]
            if len(own) != len(called):
                continue
            for keys, call in zip(own, reversed(called), strict=True):
                yield from ((key, call.stack) for key in keys)

    def _nodes(self, backward: Sequence[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the operations of a backward pass in order: the name, and what it allocated."""
        name, keys, seen = "", list[int](), set[int]()
        for key in backward:
            stack = int(self._stack[key])
            own = self._read(stack)[1]
            # The same stack again: the next one of the same name.
            if keys and (own != name or stack in seen):
                yield name, tuple(keys)
                keys, seen = [], set()
            name = own
            keys.append(key)
            seen.add(stack)
        if keys:
            yield name, tuple(keys)

    def _calls(self, forward: Sequence[int]) -> Iterator[_Call]:
        keys: list[int] = []
        for key in forward:
            if keys and self._stack[key] != self._stack[keys[-1]]:
                yield self._call(keys)
                keys = []
            keys.append(key)
        if keys:
            yield self._call(keys)

    def _call(self, keys: Sequence[int]) -> _Call:
        stack = int(self._stack[keys[0]])
        return _Call(self._read(stack)[0], tuple(keys), stack)

    def _by_life(self, forward: Sequence[int], end: int):
        """Return a function that gives the stack of what forward made and backward frees next."""
        lives = self._lives
        freed = sorted(
            (int(lives.freed[key]), key)
            for key in forward
            if lives.freed[key] <= end and lives.freed[key] != NEVER and lives.freed[key] > self._start(end)
        )
        moments = [moment for moment, _ in freed]

        def stack_after(moment: int) -> int:
            at = bisect_right(moments, moment)
            return int(self._stack[freed[at][1]]) if at < len(freed) else -1

        return stack_after

    def _start(self, end: int) -> int:
        at = int(np.searchsorted(self._passes.backward_ends, end))
        return int(self._passes.backward_starts[at])

    def _has_line(self, key: int) -> bool:
        return self._read(int(self._stack[key]))[2]

    def _read(self, stack: int) -> tuple[frozenset[str], str, bool]:
        """The operations that a stack names in forward, the one in backward, and whether a line is the user's."""
        if stack not in self._names:
            frames = self._stacks.frames_of(stack)
            names = frozenset(
                _plain(found[1]) for frame in frames if (found := _FORWARD.search(frame.name)) is not None
            )
            backward = next((_plain(found[1]) for frame in frames if (found := _BACKWARD.search(frame.name))), "")
            self._names[stack] = names, backward, users_frame(frames) is not None
        return self._names[stack]


def _plain(name: str) -> str:
    """An operation's name as both sides have it: `_log_softmax` and `LogSoftmax` are "logsoftmax"."""
    return name.replace("_", "").lower()


def _is_called(name: str, names: frozenset[str]) -> bool:
    return name in names or any(each.startswith(name) and each.removeprefix(name) in ("forward", "outf") for each in names)
