"""Record the training steps of a run, and decide when to stop the run."""

import time
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import torch

from ullage.gpu.emulator import library
from ullage.gpu.tracing.journal import Journal
from ullage.predicting.prediction.measurement import trace
from ullage.predicting.prediction.request import ChildRequest

if TYPE_CHECKING:
    from ullage.predicting.prediction.observation.observer import Observer

# While the script has not captured its CUDA graph yet, the run continues for at most this many steps.
_STEPS_FOR_A_GRAPH: Final = 20


class StepsTaken:
    """Record the training steps of a run, and decide when to stop the run."""

    def __init__(self, request: ChildRequest, journal: Journal, observer: "Observer") -> None:
        self._request, self._journal, self._observer = request, journal, observer
        self._times: list[float] = []
        # Both lists have one entry per training step, from the end of the step. These bytes are totals.
        self._sent_bytes: list[int] = []
        self._reserved_bytes: list[list[int]] = []

    def __len__(self) -> int:
        return len(self._times)

    def note_step(self) -> None:
        """Record the reserved GPU memory and the bytes sent to other ranks, at the end of a training step."""
        self._times.append(time.perf_counter())
        # torch.cuda.memory_reserved() would sort all statistics of the GPU to return this one number.
        self._reserved_bytes.append(
            [
                torch._C._cuda_memoryStats(device)["reserved_bytes"]["all"]["current"]
                for device in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
            ]
        )
        self._sent_bytes.append(library.communicators().sent_bytes)

    def forget(self) -> None:
        """Discard all recorded steps, because they ended with a backward pass instead of an optimizer step."""
        for noted in (self._times, self._sent_bytes, self._reserved_bytes):
            noted.clear()

    def is_reached(self, number: int) -> bool:
        """Return whether the run may stop after this step."""
        wanted, more = self._request.steps, self._request.more_steps
        until = self._request.options["until"]
        if number < wanted or (until is not None and until not in self._observer.reached()):
            return False
        if more and number < wanted + _STEPS_FOR_A_GRAPH:
            graphs = self._observer.graphs
            if graphs.is_capturing or graphs.is_awaited:
                return False
        return number >= wanted + more or self._has_settled()

    def evaluation_follows(self) -> bool:
        """Return whether the script runs an evaluation directly after this step."""
        is_due = self._request.options["until"] is None and bool(self._observer.phases.evaluation_is_due)
        return is_due and "eval" not in self._observer.reached()

    def seconds(self, began: float) -> list[float]:
        """Return the duration of each training step in seconds. `began` is the start time of the first step."""
        return [round(after - before, 4) for before, after in pairwise([began, *self._times])]

    @property
    def sent_bytes_per_step(self) -> int | None:
        """The bytes that this rank sent to other ranks in the last training step, or None without a step."""
        sent = self._sent_bytes
        return sent[-1] - (sent[-2] if sent[1:] else 0) if sent else None

    def reserved_bytes(self, device: int) -> list[int]:
        """Return a GPU's reserved bytes at the end of each training step."""
        return [at_end[device] if device < len(at_end) else 0 for at_end in self._reserved_bytes]

    def _has_settled(self) -> bool:
        entries, observer = self._journal.entries(), self._observer
        device = trace.busiest_device(entries)
        if device is None:
            return True
        levels = trace.levels_of(entries, device)
        steps = trace.steps_of(levels, observer.step_ends, self.reserved_bytes(device), [], len(entries))
        is_even = trace.is_level(steps) and not trace.second_keeps(entries, observer.step_ends, device)
        return trace.is_settled(steps) and is_even
