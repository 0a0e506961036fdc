"""The forward line behind what backward allocates: its threads have no frames of Python.

Autograd runs operations in the reverse order of forward. Where C++ frames name them (`AddmmBackward0::apply`, and in
forward `at::_ops::addmm`), the n-th from the end of one belongs to the n-th of the other. Without such names lives tell
less surely: what an operation has kept for backward is freed when its own part of backward has run.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.analysis.recording import Recording, users_frame
from ullage.analysis.role.life import NEVER, KeyLives, Passes, passes_of
from ullage.analysis.role.maker import Pass, makers_of
from ullage.analysis.role.role import Sureness
from ullage.history import Frame, RecordedStacks
from ullage.program import Column

_BACKWARD: Final = re.compile(r"(\w+?)Backward(?:All)?\d*(?:<.*>)?::apply\b")
_FORWARD: Final = re.compile(r"\bat::_ops::(\w+?)::(?:call|redispatch)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardLines:
    """The stack in forward for blocks of backward: columns by the program's key."""

    stack: Column
    """-1: not known."""
    sureness: Column


def forward_lines_of(recording: Recording) -> ForwardLines:
    """Return the forward stack of every block that backward allocated without a line of the user's."""
    keys = len(recording.rebuilt.size_of_key)
    makers = makers_of(recording.history.stacks)
    own = recording.rebuilt.stack_of_key
    part = makers.part[own]
    lives = KeyLives.of(recording.program, keys)
    passes = passes_of(lives, part, np.asarray(makers.begins_backward[own] & (part == Pass.OUTSIDE), bool))
    stack, sureness = np.full(keys, -1, np.int64), np.full(keys, Sureness.GUESS, np.int64)
    for key, forward, sure in _Matching(recording, lives, passes, part).pairs():
        stack[key], sureness[key] = forward, sure
    return ForwardLines(stack=stack, sureness=sureness)


class _Matching:
    """Matches what backward passes allocate with what forward passes did."""

    def __init__(self, recording: Recording, lives: KeyLives, passes: Passes, part: Column) -> None:
        self._stacks: RecordedStacks = recording.history.stacks
        self._stack = recording.rebuilt.stack_of_key
        self._lives, self._passes, self._part = lives, passes, part
        self._read_before: dict[int, _Stack] = {}

    def pairs(self) -> Iterator[tuple[int, int, Sureness]]:
        """Yield blocks of backward, each with a stack of forward and how sure that is."""
        order, born = self._lives.order, self._lives.born[self._lives.order]
        begin = 0
        for start, end in zip(self._passes.backward_starts.tolist(), self._passes.backward_ends.tolist(), strict=True):
            low, high = np.searchsorted(born, [start, end], side="left").tolist()
            forward = [key for key in order[begin:low].tolist() if self._of(key).has_line]
            begin = high + 1
            yield from self._of_span(forward, order[low : high + 1].tolist(), start)

    def _of_span(
        self, forward: Sequence[int], inside: Sequence[int], start: int
    ) -> Iterator[tuple[int, int, Sureness]]:
        """Match one backward pass; what checkpointing ran again in it is the forward pass of what follows there."""
        again: list[int] = []
        backward: list[int] = []
        for key in inside:
            if self._part[key] == Pass.RECOMPUTED and self._of(key).has_line:
                if backward:
                    yield from self._matched(again, forward, backward, start)
                    again, backward = [], []
                again.append(key)
            elif self._part[key] == Pass.BACKWARD and not self._of(key).has_line:
                backward.append(key)
        yield from self._matched(again, forward, backward, start)

    def _matched(
        self, again: Sequence[int], forward: Sequence[int], backward: Sequence[int], start: int
    ) -> Iterator[tuple[int, int, Sureness]]:
        told = dict(self._by_operation(again, backward)) if again else {}
        left = [key for key in backward if key not in told]
        told |= dict(self._by_operation(forward, left))
        ends = self._ends([*again, *forward], start)
        moments = [moment for moment, _ in ends]
        known = [key for key in backward if key in told]
        places = {key: index for index, key in enumerate(backward)}
        spots = [places[key] for key in known]
        for index, key in enumerate(backward):
            if key in told:
                yield key, told[key], Sureness.LIKELY
                continue
            at = bisect_right(spots, index)
            beside = {told[each] for each in known[max(0, at - 1) : at + 1]}
            after = bisect_right(moments, int(self._lives.born[key]))
            if len(beside) == 1:  # on both sides, or the last there is
                yield key, beside.pop(), Sureness.GUESS
            elif after < len(ends):
                yield key, int(self._stack[ends[after][1]]), Sureness.GUESS
            elif beside:
                yield key, told[known[at - 1]], Sureness.GUESS

    def _ends(self, forward: Sequence[int], start: int) -> list[tuple[int, int]]:
        """When backward frees what forward has made: operation and key, in order."""
        freed = self._lives.freed
        return sorted((int(freed[key]), key) for key in forward if start < freed[key] < NEVER)

    def _by_operation(self, forward: Sequence[int], backward: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Match operations of backward with those of forward, the last with the first."""
        for name in dict.fromkeys(self._of(key).backward for key in backward):
            if not name:
                continue
            calls = self._runs(forward, lambda key, name=name: _is_called(name, self._of(key).names), is_split=True)
            for is_split in (False, True):
                nodes = self._runs(backward, lambda key, name=name: self._of(key).backward == name, is_split=is_split)
                if len(nodes) == len(calls):
                    for node, call in zip(nodes, reversed(calls), strict=True):
                        yield from ((key, int(self._stack[call[0]])) for key in node)
                    break

    def _runs(self, keys: Sequence[int], is_one: Callable[[int], bool], *, is_split: bool) -> list[list[int]]:
        """Neighbours that belong to one name; `is_split`: the same stack twice, or another line, begins the next."""
        found: list[list[int]] = []
        is_open = False
        for key in keys:
            if not is_one(key):
                is_open = False
                continue
            last = found[-1] if is_open else []
            stack = self._stack[key]
            is_next = is_split and any(
                self._stack[other] == stack or self._of(other).place != self._of(key).place for other in last
            )
            if is_open and not is_next:
                last.append(key)
            else:
                found.append([key])
            is_open = True
        return found

    def _of(self, key: int) -> "_Stack":
        stack = int(self._stack[key])
        if stack not in self._read_before:
            self._read_before[stack] = _Stack.of(self._stacks.frames_of(stack))
        return self._read_before[stack]


@dataclass(frozen=True, slots=True)
class _Stack:
    """What a stack tells of an operation."""

    names: frozenset[str]
    """The operations on it, as forward calls them."""
    backward: str
    """The operation whose backward it is; empty if none's."""
    place: Frame | None
    """The innermost line of Python's."""
    has_line: bool
    """Whether a line is the user's own."""

    @classmethod
    def of(cls, frames: Sequence[Frame]) -> "_Stack":
        names = frozenset(_plain(found[1]) for frame in frames if (found := _FORWARD.search(frame.name)))
        backward = next((_plain(found[1]) for frame in frames if (found := _BACKWARD.search(frame.name))), "")
        place = next((frame for frame in frames if frame.file.endswith(".py")), None)
        return cls(names, backward, place, users_frame(frames) is not None)


def _plain(name: str) -> str:
    """An operation's name as both sides have it: `_log_softmax` and `LogSoftmax` are "logsoftmax"."""
    return name.replace("_", "").lower()


def _is_called(name: str, names: frozenset[str]) -> bool:
    return name in names or f"{name}forward" in names
