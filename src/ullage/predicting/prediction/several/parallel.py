"""Run several predictions, two at a time, and run none of them twice."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ullage.base.errors import ScriptError, UllageError
from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.several.draws import at_once, predict_with_draws


@dataclass(slots=True)
class ParallelRuns:
    """Run predictions, two at a time. Each result is kept, so that no prediction runs twice."""

    progress: Callable[[str], None]
    """A function that is called with a short text before and after each prediction."""
    _known: dict[str, Prediction] = field(default_factory=dict)
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def run_all(self, requests: Sequence[Request], labels: Sequence[str]) -> list[Prediction | UllageError]:
        """Run predictions, two at a time. If a script fails, return its error in place of a prediction.

        Args:
            requests: the runs.
            labels: the name of each run, for the display of progress and for error texts.
        """
        return at_once(lambda asked: self._run(*asked), zip(requests, labels, strict=True), self._cancelled)

    def known(self, request: Request) -> Prediction | None:
        """Return the stored prediction for a run, or None if the run has not finished or has failed."""
        return self._known.get(repr(request))

    def _run(self, request: Request, label: str) -> Prediction | UllageError:
        key = repr(request)
        if key not in self._known:
            self.progress(f"running {label}")
            try:
                prediction = predict_with_draws(request, cancelled=self._cancelled.is_set)
            except ScriptError as error:
                return type(error)(f"with {label}: {error}")
            self._known[key] = prediction
            self.progress(f"{label}: {prediction.verdict.value}")
        return self._known[key]
