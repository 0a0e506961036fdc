"""The steps that a run has taken, and whether they are enough: as many as are wanted, with peaks that have settled."""

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

_STEPS_FOR_A_GRAPH: Final = 20
"""The number of further steps within which the capture of a CUDA graph is waited for."""


class StepsTaken:
    """Notes the end of each step, and judges then whether the run may stop."""

    def __init__(self, request: ChildRequest, journal: Journal, observer: "Observer") -> None:
        self._request, self._journal, self._observer = request, journal, observer
        self._times: list[float] = []
        self._sent_bytes: list[int] = []
        """The bytes that had been sent to other ranks at the end of each step."""
        self._reserved_bytes: list[list[int]] = []
        """The reserved bytes of each card at the end of each step."""

    def __len__(self) -> int:
        return len(self._times)

    def note_step(self) -> None:
        """Note what is reserved and what has been sent at the end of a step."""
        self._times.append(time.perf_counter())
        # torch.cuda.memory_reserved() would sort all statistics of the card for this one number.
        self._reserved_bytes.append(
            [
                torch._C._cuda_memoryStats(device)["reserved_bytes"]["all"]["current"]
                for device in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
            ]
        )
        self._sent_bytes.append(library.communicators().sent_bytes)

    def forget(self) -> None:
        """Forget the steps that were counted by backward passes: an optimizer counts them from now on."""
        for noted in (self._times, self._sent_bytes, self._reserved_bytes):
            noted.clear()

    def is_reached(self, number: int) -> bool:
        """Tell whether a run may stop after this step: it has settled, and nothing that is wanted is still to come."""
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
        """Tell whether an evaluation comes at once, which nobody has asked to go on to."""
        is_due = self._request.options["until"] is None and bool(self._observer.phases.evaluation_is_due)
        return is_due and "eval" not in self._observer.reached()

    def seconds(self, began: float) -> list[float]:
        """Return how long each step took, the first one from a time of `time.perf_counter` on."""
        return [round(after - before, 4) for before, after in pairwise([began, *self._times])]

    @property
    def sent_bytes_per_step(self) -> int | None:
        """What was sent in the last step; the first may have begun with what is sent only once."""
        sent = self._sent_bytes
        return sent[-1] - (sent[-2] if sent[1:] else 0) if sent else None

    def reserved_bytes(self, device: int) -> list[int]:
        """Return what a card had reserved at the end of each step."""
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
