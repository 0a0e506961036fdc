"""Decides when PyTorch records its memory history.

The history adds about two microseconds to each allocation. So it is recorded in the first steps. Later it is recorded
only if memory is short or grows, or if the cost is very small.
"""

import sys
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Any, Final

import torch

from ullage.running.recording.plan import HistoryMode
from ullage.running.run_files.facts import Arming

FIRST_STEPS: Final = 5
NEAR: Final = 0.85
"""The share of used GPU memory above which ullage records memory history."""
_NEAR_UNTIL: Final = 0.75
# GPU memory no longer counts as short after this many training steps with less than `_NEAR_UNTIL` of it in use.
_CALM_STEPS: Final = 200
# The time that memory history with Python stacks adds to one allocation and its free, in seconds. `make bench` measures
# it.
_COST_SECONDS: Final = 2e-6
# The largest share of a step's time that the memory history may take while it is not needed.
_CHEAP_SHARE = 0.01
_ENTRY_BYTES: Final = 400
# The host memory of one stack frame in the memory history, in bytes. `_ENTRY_BYTES` is the host memory of one entry
# with a stack that no other entry has (tests/running/recording/test_history.py).
_FRAME_BYTES: Final = 16
_USUAL_DEPTH: Final = 64
# The number of training steps with memory history that are timed. Their times are compared with those of as many steps
# without it.
_COMPARED_STEPS: Final = 20


class MemoryHistory:
    """Switches PyTorch's memory history on and off, unless the user's script does so itself."""

    def __init__(self, mode: HistoryMode, budget_bytes: int) -> None:
        self.arming = Arming(is_on=False, why="not yet", since_step=0, entries=0, budget_bytes=budget_bytes)
        self._mode = mode
        self.is_users = False
        self._original: Any = None
        self._near_step = 0
        self._durations: dict[bool, list[float]] = {False: [], True: []}
        self._last = 0.0
        self._last_step = 0

    def install(self) -> None:
        """Start to record PyTorch's memory history. Call this right after CUDA was initialised."""
        try:
            self.is_users = bool(torch._C._cuda_isHistoryEnabled())
        except RuntimeError as error:  # raised by allocators without history, such as cudaMallocAsync
            self._mode = HistoryMode.NEVER
            self.arming = replace(self.arming, why=str(error).partition(".")[0])
            return
        self._original = torch._C._cuda_record_memory_history
        torch._C._cuda_record_memory_history = self._called_by_user
        if self._mode is not HistoryMode.NEVER:
            self._switch(is_on=True, why="the first steps", step=0)

    def remove(self) -> None:
        """Restore PyTorch's function that switches memory history on and off."""
        if self._original is not None:
            torch._C._cuda_record_memory_history = self._original
            self._original = None

    @property
    def is_on(self) -> bool:
        """Whether PyTorch records a memory history."""
        try:
            return bool(torch._C._cuda_isHistoryEnabled())
        except RuntimeError:
            return False

    @property
    def is_ours(self) -> bool:
        """Whether PyTorch records a memory history that ullage has switched on."""
        return self.arming.is_on and not self.is_users

    def update(self, step: int, *, share: float, allocations: int, grows: bool, seeks: bool) -> None:
        """Switch memory history on or off at the end of a training step.

        Args:
            step: the index of the step.
            share: the share of memory that is in use on the fullest GPU.
            allocations: the number of allocations since the last call.
            grows: whether memory grows, or seems to grow, from step to step.
            seeks: whether the line of a new peak is being searched.
        """
        now = perf_counter()
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
            return f"{share:.0%} of the GPU's memory is in use"
        if grows:
            return "memory grows"
        if seeks:
            return "the line of a new peak is being searched"
        if self._near_step and (share >= _NEAR_UNTIL or step - self._near_step < _CALM_STEPS):
            return "memory was short"
        # The larger limit keeps history from being switched off after a step that was a little shorter.
        limit = seconds * (_CHEAP_SHARE if not self.arming.is_on else 2 * _CHEAP_SHARE)
        return "it costs almost nothing" if allocations * _COST_SECONDS < limit else ""

    def _note(self, seconds: float) -> None:
        if seconds > 0:
            kept = self._durations[self.is_on]
            kept.append(seconds)
            del kept[:-_COMPARED_STEPS]

    @property
    def cost(self) -> float | None:
        """The ratio of the time of a training step with memory history to the time without it. None if it is
        unknown.
        """
        with_it, without = self._durations[True], self._durations[False]
        if min(len(with_it), len(without)) < _COMPARED_STEPS // 2:
            return None
        return median(with_it) / median(without)

    @property
    def step_seconds(self) -> float | None:
        """The median time of the latest training steps, in seconds. None before the first step."""
        latest = self._durations[self.is_on] or self._durations[not self.is_on]
        return median(latest) if latest else None

    def _switch(self, *, is_on: bool, why: str, step: int) -> None:
        if self.is_users or self._original is None:
            return
        entries = self._entries() if is_on else 0
        before = torch._C._cuda_record_memory_history
        torch._C._cuda_record_memory_history = self._original  # so that this call is not taken for one of the script
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
