"""Find the largest value of an option with which a script fits on a GPU (`ullage fit`).

Each value that is tried is run in a separate process, two at a time.
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from ullage.base.errors import ExitCode, ScriptError, UllageError, UsageError
from ullage.base.public import public
from ullage.base.secrets import without_secrets
from ullage.base.units import text_of_bytes
from ullage.predicting.changes import allocator_setting
from ullage.predicting.changes.change import Change, text_of
from ullage.predicting.changes.optimizer import optimizer_default
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.fitting.axis import LARGEST, Axis
from ullage.predicting.fitting.search import FitSearch, ProbedNeed
from ullage.predicting.prediction.changed_request import changed, makes_a_difference
from ullage.predicting.prediction.data.prediction import Prediction, Verdict
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.several.parallel import ParallelRuns
from ullage.report.answer import Answer

SCHEMA: Final = 2
CHANGES: Final = (
    (allocator_setting.EXPANDABLE_SEGMENTS, "True"),
    (allocator_setting.LARGE_BLOCKS, "128"),
    (optimizer_default.FUSED, "on"),
    (optimizer_default.FOR_LOOP, "on"),
)
"""The changes that `ullage fit` tries. They do not alter the model or the script."""
# Matches the messages of argparse, click, absl, fire and transformers' parser about an unknown option.
_NO_OPTION: Final = re.compile(
    r"unrecognized|unrecognised|not recognized|unknown|unexpected|no such|are not used", re.I
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A run with one value of the option.

    `fits` is True if even the upper end of the predicted memory range leaves the margin free.
    """

    value: int
    fits: bool
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest value of an option with which the script fits, and all runs of the search."""

    probes: tuple[Probe, ...]
    """The runs of the search, ordered by the value of the option."""
    best: Probe | None
    next: Probe | None
    """The run with the smallest value that did not fit.

    None if the highest value fits, or if the script failed.
    """
    failure: tuple[int, str] | None = None
    """The smallest value with which the script failed for a reason other than memory, and the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedChange:
    """A change that was tried, and the largest value of the option that fits with it."""

    change: Change
    setting: str
    how: str
    """The source code or the setting that makes the change.

    For a setting of PyTorch's allocator, this is the complete text to set.
    """
    applies: bool
    """Whether the change had an effect on the run."""
    probe: Probe | None
    """The run that tests the change.

    Its option value is the smallest value that does not fit without the change.
    """
    largest: Largest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierRow:
    """The largest value of the first option that fits, for one value of the second option."""

    value: int
    largest: Largest


@public
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Fit(Answer):
    """The result of `ullage fit`. All attributes that end in `_bytes` are in bytes."""

    described_in: ClassVar[str] = "ullage.predicting.fitting.describe"

    script: str
    arguments: list[str]
    gpu: str
    total_memory_bytes: int
    margin_bytes: int
    """The bytes that must stay free on the GPU, even at the upper end of the predicted memory range."""
    axis: Axis
    largest: Largest
    """The search result for the first option.

    If a second option is also searched, this result is for the lowest value of the second option.
    """
    tried: tuple[TriedChange, ...]
    second: Axis | None
    frontier: tuple[FrontierRow, ...]
    notes: tuple[str, ...] = ()
    """Messages about runs that failed or were not possible."""
    seconds: float

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of `ullage fit`."""
        if self.largest.best:
            return ExitCode.YES
        return self.largest.probes[0].prediction.verdict.exit_code or ExitCode.NO

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data for `json.dumps`, with the schema version first."""
        return {
            "schema": SCHEMA,
            "script": self.script,
            "arguments": self.arguments,
            "gpu": self.gpu,
            "torch": self.largest.probes[0].prediction.torch,
            "world_size": self.largest.probes[0].prediction.world_size,
            "rank": self.largest.probes[0].prediction.rank,
            "total_memory_bytes": self.total_memory_bytes,
            "margin_bytes": self.margin_bytes,
            "option": self.axis.option,
            **_json_of(self.largest),
            "changes": [
                {
                    "name": tried.change.name,
                    "how": tried.how,
                    "applies": tried.applies,
                    **_json_of(tried.largest or replace(self.largest, probes=(tried.probe,) if tried.probe else ())),
                }
                for tried in self.tried
            ],
            "second_option": self.second.option if self.second else None,
            "frontier": [{"value": row.value, **_json_of(row.largest)} for row in self.frontier],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
        }


def _json_of(largest: Largest) -> dict[str, Any]:
    return {
        "best": largest.best.value if largest.best else None,
        "next": largest.next.value if largest.next else None,
        "next_verdict": largest.next.prediction.verdict.value if largest.next else None,
        "failure": list(largest.failure) if largest.failure else None,
        "probes": [
            {
                "value": probe.value,
                "fits": probe.fits,
                "verdict": probe.prediction.verdict.value,
                "peak_allocated_bytes": probe.prediction.peak_allocated_bytes,
                "peak_reserved_bytes": probe.prediction.peak_reserved_bytes,
                "headroom_bytes": probe.prediction.headroom_bytes,
                "free_at_least_bytes": probe.prediction.total_memory_bytes - probe.prediction.interval_bytes[1],
                "interval_bytes": list(probe.prediction.interval_bytes),
                "oom": probe.prediction.oom is not None,
                "oom_count": probe.prediction.oom_count,
                "settled": probe.prediction.settled,
                "growth_bytes_per_step": probe.prediction.growth.bytes_per_step if probe.prediction.growth else 0,
                "seconds": probe.prediction.seconds["total"],
            }
            for probe in largest.probes
        ],
    }


@dataclass(slots=True)
class Fitter:
    """Runs one script on one emulated GPU with different values of an option, and keeps the results."""

    request: Request
    margin_bytes: int
    runs: ParallelRuns
    notes: list[str] = field(default_factory=list)
    _takes_steps: bool = False

    def largest(
        self,
        request: Request,
        axis: Axis,
        *,
        start: Sequence[int] = (),
        known: Mapping[int, int] | None = None,
        note: str = "",
    ) -> Largest:
        """Find the largest value of an option that fits.

        Args:
            request: the request without the option.
            axis: the option and its values.
            start: values near the expected result, which are run first.
            known: the approximate bytes that other values need, for the line that predicts the result.
            note: what is special about the request, for progress texts.
        """
        probes: dict[int, Probe] = {}
        failures: dict[int, UllageError] = {}

        def run(values: Sequence[int]) -> Mapping[int, ProbedNeed]:
            requests = [replace(request, arguments=axis.put_into(request.arguments, value)) for value in values]
            labels = [f"{axis.name} {value}{f' with {note}' if note else ''}" for value in values]
            needs = {}
            for value, found in zip(values, self.runs.run_all(requests, labels), strict=True):
                if isinstance(found, UllageError):
                    failures[value] = found
                else:
                    probes[value] = Probe(value=value, fits=self._fits(found), prediction=found)
                needs[value] = need_of(found, fits=value in probes and probes[value].fits)
            # A failure above all values that fit ends the search. A failure below one means that the values begin too
            # low.
            if failures and min(failures) < max(
                (value for value, probe in probes.items() if probe.fits), default=LARGEST
            ):
                raise ScriptError(_with_hint(failures[min(failures)], axis, min(failures)))
            return needs

        search = FitSearch(axis, self.request.total_bytes - self.margin_bytes, unbounded=axis.is_unbounded)
        search.points |= {axis.position_of(value): size for value, size in (known or {}).items()}
        search.run(run, start)
        if search.is_flat:
            raise UsageError(_flat_text(axis, [probe.prediction for probe in probes.values()]))
        ordered = tuple(probe for _, probe in sorted(probes.items()))
        best = probes.get(axis.value_at(search.best)) if search.best >= 0 else None
        worst = axis.value_at(search.worst) if search.worst is not None else None
        failure = (worst, str(failures[worst])) if worst is not None and worst in failures else None
        return Largest(probes=ordered, best=best, next=probes.get(worst) if worst else None, failure=failure)

    def try_changes(self, axis: Axis, largest: Largest) -> Iterator[TriedChange]:
        """Run the script with one change from `CHANGES` at a time, at the smallest option value that did not fit.

        If this value fits with the change, search for the largest value that fits with the change.
        """
        changes = [each for each in CHANGES if makes_a_difference(self.request, *each)]
        if largest.next is None:
            return
        target = largest.next.value
        arguments = axis.put_into(self.request.arguments, target)
        requests = [replace(changed(self.request, *each), arguments=arguments) for each in changes]
        labels = [f"{axis.name} {target} with {change.name}" for change, _ in changes]
        for (change, setting), prediction in zip(changes, self.runs.run_all(requests, labels), strict=True):
            how = _how(self.request, change, setting)
            if isinstance(prediction, UllageError):
                self.notes.append(f"{change.name}: {str(prediction).splitlines()[0]}")
                yield TriedChange(change=change, setting=setting, how=how, applies=False, probe=None, largest=None)
                continue
            probe = Probe(value=target, fits=self._fits(prediction), prediction=prediction)
            applies = change.install is None or text_of(change, setting) in prediction.changes_made
            found = None
            if applies and probe.fits:
                known = {probe.value: probe.prediction.interval_bytes[1] for probe in largest.probes if probe.fits}
                try:
                    found = self.largest(
                        changed(self.request, change, setting), axis, start=(target,), known=known, note=change.name
                    )
                except UllageError as error:
                    self.notes.append(f"{change.name}: {str(error).splitlines()[0]}")
            yield TriedChange(change=change, setting=setting, how=how, applies=applies, probe=probe, largest=found)

    # If runs of other values completed a training step, this run must do so, too.
    def _fits(self, prediction: Prediction) -> bool:
        has_trained = any(step.complete for step in prediction.steps)
        self._takes_steps = self._takes_steps or has_trained
        return fits_with(prediction, self.margin_bytes) and (has_trained or not self._takes_steps)

    def frontier(self, axis: Axis, second: Axis) -> Iterator[FrontierRow]:
        """Find the largest value of the first option that fits, for several values of the second option.

        The second option starts at its lowest value, which is then doubled again and again.
        """
        start = axis.start_in(self.request.arguments)
        for value in second.doubling():
            request = replace(self.request, arguments=second.put_into(self.request.arguments, value))
            try:
                found = self.largest(request, axis, start=start, note=f"{second.name} {value}")
            except ScriptError as error:
                if value == second.low:
                    raise
                self.notes.append(f"the frontier ends before {second.name} {value}: {str(error).splitlines()[0]}")
                return
            yield FrontierRow(value=value, largest=found)
            if found.best is None:
                return
            guess = found.best.value // 2  # twice the length needs about twice the memory
            start = (guess, guess + axis.multiple)


def _with_hint(failure: UllageError, axis: Axis, value: int) -> str:
    bare = axis.option.lstrip("-+")
    if any(_NO_OPTION.search(line) and bare in line for line in str(failure).splitlines()):
        return f"{failure}\n(vary= needs an option of the script, and the script does not know {axis.option})"
    return f'{failure}\n(if small values cannot work, begin higher: vary="{axis.option}={2 * value}..")'


def _how(request: Request, change: Change, setting: str) -> str:
    if change.alloc_conf is not None:
        return changed(request, change, setting).options["alloc_conf"] or ""
    return change.recipe_for(TrainingFacts(), setting).snippet


def _flat_text(axis: Axis, predictions: Sequence[Prediction]) -> str:
    most = max(prediction.interval_bytes[1] for prediction in predictions)
    return (
        f"{axis.option} has no upper end, and larger and larger values all fit in {text_of_bytes(most)}; "
        f"expected an option that changes memory use, or an upper end, such as {axis.option}={axis.low}..1024"
    )


def fits_with(prediction: Prediction, margin_bytes: int) -> bool:
    """Return whether the script fits and leaves the margin free, without catching an out-of-memory error."""
    return (
        prediction.verdict is Verdict.FITS
        and prediction.interval_bytes[1] <= prediction.total_memory_bytes - margin_bytes
        and not prediction.oom_count
    )


def need_of(found: Prediction | UllageError, *, fits: bool) -> ProbedNeed:
    """Return how much memory a value of the option needs, from the result or the error of its run."""
    if isinstance(found, UllageError):
        return ProbedNeed(high_bytes=None, fits=False)
    return ProbedNeed(high_bytes=None if found.oom else found.interval_bytes[1], fits=fits)


def fit(
    request: Request,
    axis: Axis,
    *,
    second: Axis | None = None,
    margin_bytes: int = 0,
    changes: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Fit:
    """Find the largest value of an option with which a script fits on its GPU.

    Args:
        request: the script, the GPU and how long to run; its arguments need not contain the options.
        axis: the option to maximise.
        second: another option; the result is found for each of its values, doubling from the lowest value.
        margin_bytes: memory to leave free on the GPU.
        changes: whether to try changes that need no change to the script (not in a frontier).
        progress: called with a short text for every probe.

    Raises:
        ScriptError: the script failed with a value for a reason other than memory; the text names the value.
        UsageError: the margin leaves no memory, or the request is not possible.
    """
    began = time.perf_counter()
    total = request.total_bytes
    if margin_bytes >= total:
        raise UsageError(f"margin={text_of_bytes(margin_bytes)} leaves no memory on a GPU with {text_of_bytes(total)}")
    fitter = Fitter(request, margin_bytes, ParallelRuns(progress))
    frontier = tuple(fitter.frontier(axis, second)) if second else ()
    largest = frontier[0].largest if frontier else fitter.largest(request, axis, start=axis.start_in(request.arguments))
    tried = tuple(fitter.try_changes(axis, largest)) if changes and not frontier else ()
    return Fit(
        script=str(request.script),
        arguments=list(without_secrets(request.arguments)),
        gpu=largest.probes[0].prediction.gpu,
        total_memory_bytes=total,
        margin_bytes=margin_bytes,
        axis=axis,
        largest=largest,
        tried=tried,
        notes=tuple(fitter.notes),
        second=second,
        frontier=frontier,
        seconds=time.perf_counter() - began,
    )
