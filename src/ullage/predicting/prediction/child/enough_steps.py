"""When a run has taken enough steps: so many as are wanted, and until its peaks have settled."""

from typing import TYPE_CHECKING, Any, Final

from ullage.gpu.tracing.journal import Journal
from ullage.predicting.prediction.request import ChildRequest

if TYPE_CHECKING:
    from ullage.predicting.prediction.observation.observer import Observer

_STEPS_FOR_A_GRAPH: Final = 20
"""The number of further steps within which the capture of a CUDA graph is waited for."""


class EnoughSteps:
    """Judges after each step whether a run may stop; it knows what was reserved at the end of each."""

    def __init__(self, request: ChildRequest, journal: Journal, observer: "Observer") -> None:
        self._request, self._journal, self._observer = request, journal, observer
        self.reserved_at_ends: list[list[int]] = []
        """The reserved bytes of each card at the end of each step."""

    def note_step(self, torch: Any) -> None:
        """Note what is reserved at the end of a step."""
        # torch.cuda.memory_reserved() would sort all statistics of the card for this one number.
        self.reserved_at_ends.append(
            [
                torch._C._cuda_memoryStats(device)["reserved_bytes"]["all"]["current"]
                for device in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)
            ]
        )

    def is_reached(self, number: int) -> bool:
        """Tell whether a run may stop after this step: it has settled, and nothing that is wanted is still to come."""
        wanted, more = self._request.steps, self._request.more_steps
        if number < wanted or not self._is_far_enough():
            return False
        if more and number < wanted + _STEPS_FOR_A_GRAPH:
            graphs = self._observer.graphs
            if graphs.is_capturing or graphs.is_awaited:
                return False
        return number >= wanted + more or self._has_settled()

    def _is_far_enough(self) -> bool:
        """Tell whether the run has come to what it is to go on to."""
        until = self._request.options["until"]
        if until is None:
            return True
        reached = self._observer.reached()
        return {"eval": reached.evaluation, "save": reached.saving}.get(until, False)

    def evaluation_follows(self) -> bool:
        """Tell whether an evaluation comes at once, which nobody has asked to go on to."""
        if self._request.options["until"] is not None:
            return False
        return bool(self._observer.phases.evaluation_is_due) and not self._observer.reached().evaluation

    def _has_settled(self) -> bool:
        from ullage.predicting.prediction.measurement import trace

        entries, observer = self._journal.entries(), self._observer
        device = trace.busiest_device(entries)
        if device is None:
            return True
        levels = trace.levels_of(entries, device)
        reserved = [at_end[device] if device < len(at_end) else 0 for at_end in self.reserved_at_ends]
        steps = trace.steps_of(levels, observer.step_ends, reserved, [], len(entries))
        is_even = trace.is_level(steps) and not trace.second_keeps(entries, observer.step_ends, device)
        return trace.is_settled(steps) and is_even
