"""What is changed of a run from outside, and what is gathered of it beside its bytes: how it trains, what is avoidable.

The changes are those of `ullage.predicting.changes`; what could be avoided is looked for by `prediction.avoidable`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ullage.gpu.tracing.journal import Journal
from ullage.predicting.prediction.data.run_result import RunResult
from ullage.predicting.prediction.request import ChildRequest

if TYPE_CHECKING:
    from ullage.gpu.values.start import Values
    from ullage.predicting.changes.training.training_loop import TrainingLoop
    from ullage.predicting.prediction.avoidable.diagnosis import AvoidableSearch
    from ullage.predicting.prediction.observation.observer import Observer


class TrainingInspection:
    """The changes and the search of one run, from torch's import to its result."""

    def __init__(
        self,
        request: ChildRequest,
        journal: Journal,
        observer: "Observer",
        values: "Values",
    ) -> None:
        """Begin to look for what is avoidable, where that is asked for."""
        self._request, self._journal = request, journal
        self._loop: TrainingLoop | None = None
        self.search: AvoidableSearch | None = None
        """The search for what is avoidable, where that is asked for."""
        if request.diagnose:
            from ullage.predicting.prediction.avoidable import diagnosis

            self.search = diagnosis.AvoidableSearch(journal, observer, values)
            self.search.begin()

    def make_changes(self, note: Callable[[str], None]) -> None:
        """Make the changes that are asked for, and gather how the run trains."""
        request = self._request
        if request.changes or request.diagnose:
            from ullage.predicting.changes.all_changes import install

            self._loop = install(request.changes, note, self._journal if request.diagnose else None)

    def with_changes(self, result: RunResult) -> RunResult:
        """Return a result with what each change did, or why it was not made."""
        if self._loop is None:
            return result
        return replace(result, changes_made=dict(self._loop.effects), changes_refused=self._loop.refusals)

    def with_training(self, result: RunResult) -> RunResult:
        """Return a result with how the run trains, where that was gathered."""
        gathered = self._loop.gathered if self._loop is not None else None
        return result if gathered is None else replace(result, training=gathered(self._journal.entries()))
