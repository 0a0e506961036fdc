"""Finds the forward source line for memory that is allocated in backward, where no Python frames exist.

Autograd runs operations in the reverse order of forward. If C++ frames name the operations (`AddmmBackward0::apply`,
and in forward `at::_ops::addmm`), the n-th operation from the end of backward corresponds to the n-th of forward.
Without these names, lifetimes give a less certain answer: a block that an operation saved for backward is freed when
the backward of that operation has run.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from ullage.explaining.analysis.frame_names import is_in, node_in, operation_in
from ullage.explaining.analysis.recording import Recording
from ullage.explaining.analysis.role.life import NEVER, KeyLives, Passes, passes_of
from ullage.explaining.analysis.role.maker import Pass, makers_of
from ullage.explaining.analysis.role.role import Sureness
from ullage.recorded.frame import Frame, users_frame
from ullage.recorded.history import RecordedStacks
from ullage.recorded.program import Column

_ENGINE: Final = re.compile("autograd::Engine::evaluate_function")


def forward_stacks_of(recording: Recording, wanted: Iterable[int]) -> dict[int, tuple[int, Sureness]]:
    """Find the forward call stack for each block that was allocated in backward, and how certain it is.

    Args:
        recording: the run.
        wanted: keys of blocks. Blocks with a line of user code, or without an operation on their stack, are left out of
            the result.
    """
    chosen = frozenset(wanted)
    if not chosen:
        return {}
    keys = len(recording.rebuilt.size_of_key)
    makers = makers_of(recording.history.stacks)
    own = recording.rebuilt.stack_of_key
    part = makers.part[own]
    lives = KeyLives.of(recording.program, keys)
    passes = passes_of(lives, part, np.asarray(makers.begins_backward[own] & (part == Pass.OUTSIDE), bool))
    pairs = _Matching(recording, lives, passes, part).pairs(lives.born[sorted(chosen)])
    return {key: (forward, sure) for key, forward, sure in pairs if key in chosen}


class _Matching:
    def __init__(self, recording: Recording, lives: KeyLives, passes: Passes, part: Column) -> None:
        self._stacks: RecordedStacks = recording.history.stacks
        self._stack = recording.rebuilt.stack_of_key
        self._lives, self._passes, self._part = lives, passes, part
        self._read_before: dict[int, _OperationStack] = {}

    def pairs(self, moments: Column) -> Iterator[tuple[int, int, Sureness]]:
        order, born = self._lives.order, self._lives.born[self._lives.order]
        begin = 0
        for start, end in zip(self._passes.backward_starts.tolist(), self._passes.backward_ends.tolist(), strict=True):
            low, high = np.searchsorted(born, [start, end], side="left").tolist()
            if not ((moments >= start) & (moments <= end)).any():
                begin = high + 1
                continue
            forward = [key for key in order[begin:low].tolist() if self._of(key).has_line]
            begin = high + 1
            yield from self._of_span(forward, order[low : high + 1].tolist(), start)

    # If checkpointing reruns a part of forward, the blocks that follow are matched with this part first.
    def _of_span(
        self, forward: Sequence[int], inside: Sequence[int], start: int
    ) -> Iterator[tuple[int, int, Sureness]]:
        again: list[int] = []
        backward: list[int] = []
        for key in inside:
            if self._part[key] == Pass.RECOMPUTED and self._of(key).has_line:
                if backward:
                    yield from self._matched(again, forward, backward, start)
                    again, backward = [], []
                again.append(key)
            elif self._part[key] == Pass.BACKWARD and self._of(key).is_engines and not self._of(key).has_line:
                backward.append(key)
        yield from self._matched(again, forward, backward, start)

    def _matched(
        self, again: Sequence[int], forward: Sequence[int], backward: Sequence[int], start: int
    ) -> Iterator[tuple[int, int, Sureness]]:
        pairs = [*self._by_operation(again, backward)]
        left = set(backward) - {key for key, _, _ in pairs}
        pairs += self._by_operation(forward, [key for key in backward if key in left])
        told = {key: stack for key, stack, sure in pairs if sure is Sureness.LIKELY}
        guessed = {key: stack for key, stack, sure in pairs if sure is Sureness.GUESS}
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
            if not self._of(key).backward and at and spots[at - 1] == index - 1:
                # A block allocated by the engine itself: it sums the results of the previous operation.
                told[key] = told[known[at - 1]]
                known.insert(at, key)
                spots.insert(at, index)
                yield key, told[key], Sureness.LIKELY
                continue
            beside = {told[each] for each in known[max(0, at - 1) : at + 1]}
            after = bisect_right(moments, int(self._lives.born[key]))
            if len(beside) == 1:  # the same on both sides, or there is only one
                yield key, beside.pop(), Sureness.GUESS
            elif key in guessed:
                yield key, guessed[key], Sureness.GUESS
            elif after < len(ends):
                yield key, int(self._stack[ends[after][1]]), Sureness.GUESS
            elif beside:
                yield key, told[known[at - 1]], Sureness.GUESS

    def _ends(self, forward: Sequence[int], start: int) -> list[tuple[int, int]]:
        freed = self._lives.freed
        return sorted((int(freed[key]), key) for key in forward if start < freed[key] < NEVER)

    # Backward runs in reverse order. Its first operation therefore belongs to the last forward operation.
    def _by_operation(self, forward: Sequence[int], backward: Sequence[int]) -> Iterator[tuple[int, int, Sureness]]:
        for name in dict.fromkeys(found for key in backward if (found := self._of(key).backward)):
            calls = self._runs(forward, partial(self._is_called, name), is_split=True)
            for is_split in (False, True):
                nodes = self._runs(backward, partial(self._is_backward, name), is_split=is_split)
                if len(nodes) == len(calls):
                    for node, call in zip(nodes, reversed(calls), strict=True):
                        yield from ((key, int(self._stack[call[0]]), Sureness.LIKELY) for key in node)
                    break
            else:
                nodes = self._runs(backward, partial(self._is_backward, name), is_split=False)
                if len(nodes) < len(calls):  # the first forward operations may need no gradient
                    for node, call in zip(nodes, reversed(calls), strict=False):
                        yield from ((key, int(self._stack[call[0]]), Sureness.GUESS) for key in node)

    def _is_called(self, name: str, key: int) -> bool:
        names = self._of(key).names
        return name in names or f"{name}forward" in names

    def _is_backward(self, name: str, key: int) -> bool:
        return self._of(key).backward == name

    def _runs(self, keys: Sequence[int], is_one: Callable[[int], bool], *, is_split: bool) -> list[list[int]]:
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

    def _of(self, key: int) -> "_OperationStack":
        stack = int(self._stack[key])
        if stack not in self._read_before:
            self._read_before[stack] = _OperationStack.of(self._stacks.frames_of(stack))
        return self._read_before[stack]


@dataclass(frozen=True, slots=True)
class _OperationStack:
    names: frozenset[str]
    backward: str
    is_engines: bool
    place: Frame | None
    has_line: bool

    @classmethod
    def of(cls, frames: Sequence[Frame]) -> "_OperationStack":
        names = frozenset(_plain(name) for frame in frames if (name := operation_in(frame.name)))
        backward = next((_plain(found[1]) for frame in frames if (found := node_in(frame.name))), "")
        place = next((frame for frame in frames if frame.is_python), None)
        is_engines = bool(backward) or any(is_in(_ENGINE.search, frame.name) for frame in frames)
        return cls(names, backward, is_engines, place, users_frame(frames) is not None)


# Both `_log_softmax` and `LogSoftmax` become "logsoftmax".
def _plain(name: str) -> str:
    return name.replace("_", "").lower()
