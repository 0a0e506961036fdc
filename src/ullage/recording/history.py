"""PyTorch's memory history: when it is recorded, and how much of it, within a budget of host memory.

With it every allocation costs about two microseconds more, which is nothing to a step of a second and much to one of
ten milliseconds. So it is on in the first steps, where a script that does not fit fails and where what stays is made;
later where memory is short, where something grows, or where it costs next to nothing.
"""

import sys
import time
from dataclasses import replace
from statistics import median
from typing import Any, Final

import torch

from ullage.recording.facts import Arming
from ullage.recording.plan import HistoryMode

FIRST_STEPS: Final = 5
NEAR: Final = 0.85
"""The share of a card from which on memory is short."""
_FAR: Final = 0.75
_CALM_STEPS: Final = 200
"""So many steps below that, and it is short no more."""
_COST_SECONDS: Final = 2e-6
"""Of one allocation and its free, with Python stacks (`make bench` measures it)."""
_CHEAP = 0.01
"""Of a step, which history may cost where there is no need for it."""
_ENTRY_BYTES: Final = 400
_FRAME_BYTES: Final = 16
"""Of an entry of PyTorch's ring with a stack of its own, and of each frame (tests/recording/test_history.py)."""
_USUAL_DEPTH: Final = 64
_COMPARED: Final = 20
"""Steps before and after a change whose durations are compared."""


class MemoryHistory:
    """Switches PyTorch's history on and off; where the script does that itself, it is left alone."""

    def __init__(self, mode: HistoryMode, budget_bytes: int) -> None:
        self.arming = Arming(is_on=False, why="not yet", since_step=0, entries=0, budget_bytes=budget_bytes)
        self._mode = mode
        self.is_users = False
        """Whether the script keeps a history itself."""
        self._original: Any = None
        self._near_step = 0
        self._durations: dict[bool, list[float]] = {False: [], True: []}
        self._last = 0.0
        self._last_step = 0

    def install(self) -> None:
        """Begin, right after CUDA was initialised."""
        try:
            self.is_users = bool(torch._C._cuda_isHistoryEnabled())
        except RuntimeError as error:  # of an allocator that has none, such as cudaMallocAsync
            self._mode = HistoryMode.NEVER
            self.arming = replace(self.arming, why=str(error).partition(".")[0])
            return
        self._original = torch._C._cuda_record_memory_history
        torch._C._cuda_record_memory_history = self._called_by_user
        if self._mode is not HistoryMode.NEVER:
            self._switch(is_on=True, why="the first steps", step=0)

    def remove(self) -> None:
        """Put PyTorch's own function back; what is recorded stays as it is."""
        if self._original is not None:
            torch._C._cuda_record_memory_history = self._original
            self._original = None

    @property
    def is_on(self) -> bool:
        """Whether PyTorch records, whoever has asked for it."""
        try:
            return bool(torch._C._cuda_isHistoryEnabled())
        except RuntimeError:
            return False

    @property
    def is_ours(self) -> bool:
        """Whether PyTorch records what we have asked for, which has an end."""
        return self.arming.is_on and not self.is_users

    def look(self, step: int, *, share: float, allocations: int, grows: bool, seeks: bool) -> None:
        """Decide, at the end of a step.

        Args:
            step: its number.
            share: of the fullest card, in use.
            allocations: that were made since the last look.
            grows: whether memory does, from step to step, or seems to.
            seeks: whether the line of a peak is sought.
        """
        now = time.perf_counter()
        seconds, self._last = now - self._last if self._last else 0.0, now
        steps, self._last_step = max(1, step - self._last_step), step
        self._note(seconds / steps)
        if self._mode is HistoryMode.NEVER or self.is_users:
            return
        if share >= NEAR:
            self._near_step = step
        why = self._why(step, share, allocations, seconds, grows=grows, seeks=seeks)
        if bool(why) != self.arming.is_on or (why and not self.is_on):
            self._switch(is_on=bool(why), why=why or "memory is not short", step=step)
        elif why:
            self.arming = replace(self.arming, why=why)

    def _why(self, step: int, share: float, allocations: int, seconds: float, *, grows: bool, seeks: bool) -> str:
        if self._mode is HistoryMode.ALWAYS:
            return "--history always"
        if step < FIRST_STEPS:
            return "the first steps"
        if share >= NEAR:
            return f"{share:.0%} of the card are in use"
        if grows:
            return "memory grows"
        if seeks:
            return "the line of a new peak is sought"
        if self._near_step and (share >= _FAR or step - self._near_step < _CALM_STEPS):
            return "memory was short"
        # With the margin, one that is on is not switched off by a step that was a little shorter.
        limit = seconds * (_CHEAP if not self.arming.is_on else 2 * _CHEAP)
        return "it costs next to nothing" if allocations * _COST_SECONDS < limit else ""

    def _note(self, seconds: float) -> None:
        if seconds > 0:
            kept = self._durations[self.is_on]
            kept.append(seconds)
            del kept[:-_COMPARED]

    @property
    def cost(self) -> float | None:
        """How many times as long steps took with history, by the medians of the latest of either kind."""
        with_it, without = self._durations[True], self._durations[False]
        if min(len(with_it), len(without)) < _COMPARED // 2:
            return None
        return median(with_it) / median(without)

    @property
    def step_seconds(self) -> float | None:
        """Median duration of the latest steps."""
        latest = self._durations[self.is_on] or self._durations[not self.is_on]
        return median(latest) if latest else None

    def _switch(self, *, is_on: bool, why: str, step: int) -> None:
        if self.is_users or self._original is None:
            return
        entries = self._entries() if is_on else 0
        before = torch._C._cuda_record_memory_history
        torch._C._cuda_record_memory_history = self._original  # which is not the script's call
        try:
            if is_on:
                torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python", max_entries=entries)
            else:
                torch.cuda.memory._record_memory_history(None)
        finally:
            torch._C._cuda_record_memory_history = before
        self.arming = Arming(
            is_on=is_on, why=why, since_step=step, entries=entries, budget_bytes=self.arming.budget_bytes
        )

    def _entries(self) -> int:
        depth, frame = 0, sys._getframe()
        while frame.f_back is not None:
            depth, frame = depth + 1, frame.f_back
        one = _ENTRY_BYTES + _FRAME_BYTES * max(_USUAL_DEPTH, depth + _USUAL_DEPTH // 2)
        return max(1000, self.arming.budget_bytes // one)

    def _called_by_user(self, enabled: Any, *arguments: Any, **keywords: Any) -> Any:
        self.is_users = enabled not in (None, False)
        return self._original(enabled, *arguments, **keywords)
