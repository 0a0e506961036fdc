"""Find changes that make a script fit on a GPU (`ullage advise`), by runs on the emulated GPU."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Final

from ullage.base.errors import ExitCode, UllageError
from ullage.base.public import public
from ullage.base.secrets import without_secrets
from ullage.predicting.advice.cost import TimeEstimate, estimate_of
from ullage.predicting.advice.largest import LargestWith, largest_as_it_is, largest_by_cost
from ullage.predicting.advice.search import AdviceSearch
from ullage.predicting.advice.trial import ChangeSetting, ChangeTrial, Combination, NotMade, candidates_of
from ullage.predicting.advice.written import WrittenAdvice, written
from ullage.predicting.changes.change import ChangeCost
from ullage.predicting.changes.training.facts import CodePlace, HeldVariable, TrainingFacts
from ullage.predicting.editing.edit import NotCertain
from ullage.predicting.fitting.axis import Axis
from ullage.predicting.fitting.fit import Fitter
from ullage.predicting.prediction.data.avoidable_memory import AvoidableKind
from ullage.predicting.prediction.data.prediction import Prediction, Verdict
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.several.parallel import ParallelRuns
from ullage.report.answer import Answer

SCHEMA: Final = 1
ROOM_BYTES: Final = 1 << 40
"""The memory of the emulated GPU when a script is run without a memory limit. No real GPU has as much."""


@public
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Advice(Answer):
    """The result of `ullage advise`. All attributes that end in `_bytes` are in bytes."""

    described_in: ClassVar[str] = "ullage.predicting.advice.describe"

    script: str
    arguments: list[str]
    gpu: str
    total_memory_bytes: int
    base: Prediction
    """The run of the unchanged script on the requested GPU."""
    need: Prediction
    """The run of the unchanged script with practically unlimited memory, which shows how much it needs."""
    facts: TrainingFacts
    """Facts about the model, the training loop and the optimizers, which decide which changes can be applied."""
    trials: tuple[ChangeTrial, ...]
    """The changes that were tried alone, each with the result of its run."""
    not_made: tuple[NotMade, ...]
    """The changes that cannot be applied to this script, each with the reason."""
    best: ChangeTrial | None
    """The cheapest combination of changes with which the script fits.

    None if no combination fits, or if the script fits without changes.
    """
    estimate: TimeEstimate | None
    """The estimated time that the best combination of changes adds to a training step."""
    written: WrittenAdvice | None
    """The best combination of changes as source code, and the result of a run with this code."""
    is_complete: bool
    """Whether the search finished, and was not interrupted."""
    axis: Axis | None = None
    """The option whose largest value was searched for, or None if no option was given."""
    largest: tuple[LargestWith, ...] = ()
    """The largest batch sizes (or values of another option) that fit: first without changes, then with changes.

    The changes become more expensive from one element to the next. The tuple is empty if no option was given.
    """
    seconds: float

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of `ullage advise`."""
        if self.axis is not None and self.largest:
            if any(each.value is not None for each in self.largest):
                return ExitCode.YES
        elif self.base.verdict is Verdict.FITS or self.best is not None:
            return ExitCode.YES
        return self.base.verdict.exit_code or ExitCode.NO

    def to_json(self) -> dict[str, Any]:
        """Return the advice as plain data for `json.dumps`. The first key is the schema version."""
        return {
            "schema": SCHEMA,
            "script": self.script,
            "arguments": self.arguments,
            "gpu": self.gpu,
            "torch": self.base.torch,
            "total_memory_bytes": self.total_memory_bytes,
            "verdict": self.base.verdict.value,
            "need": _peaks(self.need),
            "avoidable": [asdict(each) for each in self.need.avoidable],
            "changes": [_trial(trial, self.facts, self.need) for trial in self.trials],
            "not_made": [{"key": each.change.key, "name": each.change.name, "why": each.why} for each in self.not_made],
            "best": _trial(self.best, self.facts, self.need) if self.best is not None else None,
            "written": self.written.to_json() if self.written is not None else None,
            "option": self.axis.option if self.axis is not None else None,
            "largest": [each.to_json() for each in self.largest],
            "is_complete": self.is_complete,
            "seconds": round(self.seconds, 3),
        }


def _peaks(found: Prediction) -> dict[str, Any]:
    return {
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "interval_bytes": list(found.interval_bytes),
    }


def _trial(trial: ChangeTrial, facts: TrainingFacts, need: Prediction) -> dict[str, Any]:
    estimate = estimate_of(trial.combination, facts)
    return {
        "changes": [part.text for part in trial.combination.parts],
        "name": trial.combination.title,
        "cost": trial.combination.cost.name.lower(),
        "gradients": trial.combination.gradients(facts).value,
        "fits": trial.fits,
        "problem": trial.problem,
        "added_computation": estimate.added_share,
        "host_bytes": estimate.host_bytes,
        "pinned_host_bytes": trial.pinned_bytes(need),
        **(_peaks(trial.prediction) if trial.prediction is not None else {}),
    }


class Adviser:
    """Runs the user's script without and with changes, to find changes that reduce its GPU memory."""

    def __init__(self, request: Request, runs: ParallelRuns) -> None:
        self.request = request
        self.total_bytes = request.total_bytes
        self.roomy = request.with_options(total_memory=max(ROOM_BYTES, self.total_bytes))
        self.facts = TrainingFacts()
        self.runs = runs
        self._asked: list[Combination] = []

    def begin(self) -> tuple[Prediction, Prediction, TrainingFacts]:
        """Run the unchanged script three times: with the GPU's memory, with practically unlimited memory, and with a
        FLOP counter.

        Raises:
            ScriptError: the script fails for a reason other than memory.
        """
        diagnosed = replace(self.roomy, diagnose=True)
        counted = replace(diagnosed, changes=("count_flops=on",)).with_options(steps=1)
        base, need, count = self.runs.run_all(
            [self.request, diagnosed, counted],
            [
                "the unchanged script",
                "the unchanged script on a GPU with ample memory",
                "the unchanged script with its FLOPs counted",
            ],
        )
        for found in (base, need):
            if isinstance(found, UllageError):
                raise found
        assert isinstance(base, Prediction)
        assert isinstance(need, Prediction)
        held = _held(need)
        others = [] if held else _held_by(need)
        facts = replace(need.training or TrainingFacts(), held=held, held_elsewhere=others)
        if isinstance(count, Prediction) and count.training is not None:
            facts = facts.with_counts(count.training)
        self.facts = facts
        return base, need, facts

    def try_all(self, combinations: Sequence[Combination]) -> list[ChangeTrial]:
        """Run the script with each combination of changes on an emulated GPU with practically unlimited memory.

        The allocated memory may fit on the user's GPU although the reserved memory does not. In this case, run the
        combination again with the memory of the user's GPU: the allocator frees cached segments when memory is short.
        """
        self._asked += combinations
        found = self._run_all(self.roomy, combinations, [one.title for one in combinations])
        trials = [self._trial(one, result) for one, result in zip(combinations, found, strict=True)]
        unsure = [
            index
            for index, trial in enumerate(trials)
            if trial.prediction is not None and not trial.problem and not trial.fits and self._may_fit(trial.prediction)
        ]
        if unsure:
            some = [combinations[index] for index in unsure]
            labels = [f"{one.title}, with the memory size of the GPU" for one in some]
            for index, result in zip(unsure, self._run_all(self.request, some, labels), strict=True):
                if isinstance(result, Prediction) and _is_proved(result):
                    trials[index] = replace(trials[index], prediction=result, fits=True)
        return trials

    def finished(self) -> list[ChangeTrial]:
        """Return the results of all runs that have finished, even after an interruption."""
        made = [(one, self._made(self.roomy, one)) for one in self._asked]
        known = [(one, self.runs.known(request)) for one, request in made if isinstance(request, Request)]
        return [self._trial(one, result) for one, result in known if result is not None]

    def _made(self, request: Request, one: Combination) -> Request | NotCertain:
        try:
            return one.request(request, self.facts)
        except NotCertain as error:
            return error

    def _run_all(
        self, request: Request, combinations: Sequence[Combination], labels: Sequence[str]
    ) -> list[Prediction | UllageError]:
        made = [self._made(request, one) for one in combinations]
        runs = [(each, label) for each, label in zip(made, labels, strict=True) if isinstance(each, Request)]
        found = iter(self.runs.run_all([each for each, _ in runs], [label for _, label in runs]))
        return [next(found) if isinstance(each, Request) else each for each in made]

    def _trial(self, one: Combination, result: Prediction | UllageError) -> ChangeTrial:
        if isinstance(result, NotCertain):
            return ChangeTrial(combination=one, problem=str(result))
        if isinstance(result, UllageError):
            return ChangeTrial(combination=one, problem=f"the script fails with this change: {_last_line(result)}")
        for part in one.parts:
            if part.text in result.changes_refused:
                return ChangeTrial(combination=one, prediction=result, problem=result.changes_refused[part.text])
            is_hook = part.change.install is not None and not part.is_edit(self.facts)
            if is_hook and part.text not in result.changes_made:
                return ChangeTrial(combination=one, prediction=result, problem="the change had no effect in this run")
        fits = result.interval_bytes[1] <= self.total_bytes and result.oom is None and _has_trained(result)
        return ChangeTrial(combination=one, prediction=result, fits=fits and not result.oom_count)

    def _may_fit(self, found: Prediction) -> bool:
        return found.oom is None and found.peak_allocated_bytes + found.context_interval_bytes[0] <= self.total_bytes


def _held(need: Prediction) -> list[HeldVariable]:
    found = []
    for each in need.avoidable:
        is_of_variables = all(name.isidentifier() for name in each.names)
        if each.kind is AvoidableKind.HELD_OVER and is_of_variables and each.hold_file and each.hold_line:
            place = CodePlace(file=each.hold_file, line=each.hold_line, function=each.hold_function)
            found += [HeldVariable(name=name, place=place) for name in each.variables]
    return found


def _held_by(need: Prediction) -> list[str]:
    found = [name for each in need.avoidable if each.kind is AvoidableKind.HELD_OVER for name in each.names]
    return list(dict.fromkeys(found))


def _unwritten(one: Combination, facts: TrainingFacts) -> int:
    recipes = [part.change.recipe_for(facts, part.setting) for part in one.parts]
    return sum(not (recipe.edits or recipe.environment or recipe.arguments) for recipe in recipes)


def _is_proved(found: Prediction) -> bool:
    return found.verdict is Verdict.FITS and not found.oom_count and _has_trained(found)


def _has_trained(found: Prediction) -> bool:
    return any(step.complete for step in found.steps)


def _last_line(error: UllageError) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if " raised " in line), lines[0] if lines else type(error).__name__)


@dataclass(slots=True)
class _FoundAdvice:
    best: ChangeTrial | None = None
    proof: WrittenAdvice | None = None
    largest: list[LargestWith] = field(default_factory=list)
    is_complete: bool = False

    def write(self, adviser: Adviser, *, is_to_run: bool = True) -> None:
        if self.best is not None:
            self.proof = written(adviser.roomy, adviser.request, adviser.facts, self.best, is_to_run=is_to_run)


def advise(
    request: Request,
    *,
    axis: Axis | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Advice:
    """Find changes that make a script fit on its GPU, or the largest value of an option that fits.

    With `axis`, the largest value is searched for, without and with changes. After Ctrl-C, the results so far are
    returned.

    Raises:
        ScriptError: the script fails for a reason other than memory.
        UsageError: the request is invalid.
    """
    began = time.perf_counter()
    runs = ParallelRuns(progress)
    answer = _FoundAdvice()
    given, fitter = request, Fitter(request, 0, runs)
    if axis is not None:
        answer.largest.append(largest_as_it_is(request, axis, fitter))
        # Which change saves most depends on the option's value, so the changes are compared at the smallest value that
        # does not fit.
        request = replace(request, arguments=axis.put_into(request.arguments, answer.largest[0].to_weigh))
    adviser = Adviser(request, runs)
    base, need, facts = adviser.begin()
    settings, not_made = candidates_of(facts, request)
    search = AdviceSearch(
        settings,
        need.interval_bytes[1],
        adviser.try_all,
        time=lambda one: (_unwritten(one, facts) + estimate_of(one, facts).order, estimate_of(one, facts).host_bytes),
    )
    try:
        search.singles()
        if axis is not None:
            for one in largest_by_cost(given, axis, facts, search.useful(), fitter, answer.largest[0]):
                answer.largest.append(one)
        elif base.verdict is not Verdict.FITS:
            answer.best = search.best()
            answer.write(adviser)
        answer.is_complete = True
    except BaseException as error:
        if isinstance(error, Exception):
            raise
        progress("interrupted; the results so far follow")
        search.learn(adviser.finished())
        if base.verdict is not Verdict.FITS and axis is None:
            answer.best = answer.best or search.best_so_far()
            answer.write(adviser, is_to_run=False)
    singles = [trial for trial in search.tried.values() if len(trial.combination.parts) == 1]
    return Advice(
        script=str(request.script),
        arguments=list(without_secrets(request.arguments)),
        gpu=base.gpu,
        total_memory_bytes=adviser.total_bytes,
        base=base,
        need=need,
        facts=facts,
        trials=tuple(trial for trial in singles if not trial.problem),
        not_made=(*not_made, *_not_made_after_all(singles, settings)),
        best=answer.best,
        estimate=estimate_of(answer.best.combination, facts) if answer.best is not None else None,
        written=answer.proof,
        is_complete=answer.is_complete,
        axis=axis,
        largest=tuple(answer.largest),
        seconds=time.perf_counter() - began,
    )


def _not_made_after_all(
    singles: Sequence[ChangeTrial], settings: Mapping[str, Sequence[ChangeSetting]]
) -> Iterator[NotMade]:
    for trial in singles:
        if trial.problem:
            yield NotMade(change=trial.combination.parts[0].change, why=trial.problem)
    tried = {trial.combination.parts[0].change.key for trial in singles}
    for key, [first, *_] in settings.items():
        if first.change.cost is ChangeCost.CARDS and key not in tried:
            yield NotMade(change=first.change, why="it needs more GPUs, and is tried only if nothing else fits")
