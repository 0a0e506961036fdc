"""`ullage fit`: the largest value of an option with which a script fits on a card, each value actually run.

Every probe is a prediction in a process of its own, two at a time. What has been run once is not run again.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ullage._errors import ScriptError, UllageError, UsageError
from ullage._units import text_of_bytes
from ullage.fitting.axis import LARGEST, Axis
from ullage.fitting.lever import LEVERS, Lever
from ullage.fitting.search import Need, Search
from ullage.gpus import find_gpu
from ullage.prediction.prediction import Prediction, Verdict
from ullage.prediction.request import Request
from ullage.prediction.script import predict

SCHEMA: Final = 1
AT_ONCE: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One value that was run; `fits` says that it fits for certain, the margin left free."""

    value: int
    fits: bool
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest value that fits, and the probes that prove it."""

    probes: tuple[Probe, ...]
    """By value."""
    best: Probe | None
    next: Probe | None
    """The smallest value that does not fit for certain; None where the range ended first, or the script failed."""
    failure: tuple[int, str] | None = None
    """The smallest value with which the script failed for another reason than memory, and how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What a lever gains: the largest value with it; None where no more fits than without it."""

    lever: Lever
    applies: bool
    """Whether it changed anything in the script's run."""
    tried: Probe | None
    """With it, the smallest value that does not fit without it."""
    largest: Largest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a frontier: the largest first value beside one value of the second option."""

    value: int
    largest: Largest


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The answer; every `*_bytes` in bytes."""

    script: str
    arguments: list[str]
    gpu: str
    total_memory_bytes: int
    margin_bytes: int
    """Left free on the card beyond the high end of what would be used."""
    axis: Axis
    largest: Largest
    """Of the first option; in a frontier, beside the second option's lowest value."""
    pulled: tuple[Pulled, ...]
    second: Axis | None
    frontier: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """What could not be run."""
    seconds: float

    @property
    def exit_code(self) -> int:
        """0 a value fits, 1 none does, 4 whether the lowest does cannot be judged."""
        return 0 if self.largest.best else self.largest.probes[0].prediction.verdict.exit_code or 1

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `json.dumps`, with the schema's version first."""
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
            "levers": [
                {
                    "name": pulled.lever.name,
                    "how": pulled.lever.how,
                    "applies": pulled.applies,
                    **_json_of(pulled.largest or replace(self.largest, probes=(pulled.tried,) if pulled.tried else ())),
                }
                for pulled in self.pulled
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
    """Runs probes for one script on one card and remembers them."""

    request: Request
    margin_bytes: int
    progress: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
    _known: dict[tuple[str | None, str | None, tuple[str, ...]], Prediction] = field(default_factory=dict)
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _takes_steps: bool = False

    @property
    def total_bytes(self) -> int:
        """The memory of the card."""
        return self.request.total_bytes(find_gpu(self.request.gpu, arch=self.request.arch))

    def largest(
        self,
        request: Request,
        axis: Axis,
        *,
        start: Sequence[int] = (),
        known: Mapping[int, int] | None = None,
        note: str = "",
    ) -> Largest:
        """Search along an axis.

        Args:
            request: with everything but the axis's option.
            axis: what to vary.
            start: where an answer is expected: probed first.
            known: bytes that other values need about; for the line that foretells.
            note: what is different about the request, for the progress.
        """
        probes: dict[int, Probe] = {}
        failures: dict[int, UllageError] = {}

        def run(values: Sequence[int]) -> Mapping[int, Need]:
            requests = [replace(request, arguments=axis.put_into(request.arguments, value)) for value in values]
            labels = [f"{axis.name} {value}{f' with {note}' if note else ''}" for value in values]
            for value, found in zip(values, self._run_all(requests, labels), strict=True):
                if isinstance(found, UllageError):
                    failures[value] = found
                else:
                    probes[value] = Probe(value=value, fits=self._fits(found), prediction=found)
            # A failure above all that fits is an end; one below says that the range begins too low.
            if failures and min(failures) < max(
                (value for value, probe in probes.items() if probe.fits), default=LARGEST
            ):
                hint = f"\n(a range may begin higher: --vary {axis.option}={2 * min(failures)}..)"
                raise ScriptError(f"{failures[min(failures)]}{hint}")
            return {value: _need(probes.get(value)) for value in values}

        search = Search(axis, self.total_bytes - self.margin_bytes, unbounded=axis.is_unbounded)
        search.points |= {axis.position_of(value): size for value, size in (known or {}).items()}
        if start:
            inside = {axis.value_at(max(0, axis.position_of(value))) for value in start}
            search.know(run(sorted(inside)))
        search.run(run)
        if search.is_flat:
            raise UsageError(_flat_text(axis, [probe.prediction for probe in probes.values()]))
        ordered = tuple(probe for _, probe in sorted(probes.items()))
        best = probes.get(axis.value_at(search.best)) if search.best >= 0 else None
        worst = axis.value_at(search.worst) if search.worst is not None else None
        failure = (worst, str(failures[worst])) if worst is not None and worst in failures else None
        return Largest(probes=ordered, best=best, next=probes.get(worst) if worst else None, failure=failure)

    def pull(self, axis: Axis, largest: Largest) -> Iterator[Pulled]:
        """Try every lever: first whether it lets the smallest value that did not fit do so."""
        levers = [lever for lever in LEVERS if lever.changes(self.request)]
        if largest.next is None:
            return
        target = largest.next.value
        arguments = axis.put_into(self.request.arguments, target)
        requests = [replace(lever.pull(self.request), arguments=arguments) for lever in levers]
        labels = [f"{axis.name} {target} with {lever.name}" for lever in levers]
        for lever, prediction in zip(levers, self._run_all(requests, labels), strict=True):
            if isinstance(prediction, UllageError):
                self.notes.append(f"{lever.name}: {str(prediction).splitlines()[0]}")
                yield Pulled(lever=lever, applies=False, tried=None, largest=None)
                continue
            tried = Probe(value=target, fits=self._fits(prediction), prediction=prediction)
            applies = not (lever.optimizer_default and prediction.optimizers_changed == 0)
            found = None
            if applies and tried.fits:
                known = {probe.value: probe.prediction.interval_bytes[1] for probe in largest.probes if probe.fits}
                try:
                    found = self.largest(lever.pull(self.request), axis, start=(target,), known=known, note=lever.name)
                except UllageError as error:
                    self.notes.append(f"{lever.name}: {str(error).splitlines()[0]}")
            yield Pulled(lever=lever, applies=applies, tried=tried, largest=found)

    def _fits(self, prediction: Prediction) -> bool:
        """Whether this run proves that its value fits: the whole of it, without an error that the script handled."""
        self._takes_steps = self._takes_steps or any(step.complete for step in prediction.steps)
        return (
            prediction.verdict is Verdict.FITS
            and prediction.interval_bytes[1] <= prediction.total_memory_bytes - self.margin_bytes
            and not prediction.oom_count
            and (not self._takes_steps or any(step.complete for step in prediction.steps))
        )

    def _run_all(self, requests: Sequence[Request], labels: Sequence[str]) -> list[Prediction | UllageError]:
        """Run requests, two at a time; where a script fails, its error stands in the prediction's place."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures = [pool.submit(self._run, request, label) for request, label in zip(requests, labels, strict=True)]
            try:
                return [_result(future) for future in futures]
            except BaseException:
                self._cancelled.set()
                pool.shutdown(cancel_futures=True)
                raise

    def frontier(self, axis: Axis, second: Axis) -> Iterator[Row]:
        """Search along the first axis beside each value of the second, doubled from the lowest on."""
        start: tuple[int, ...] = ()
        for value in second.doubling():
            request = replace(self.request, arguments=second.put_into(self.request.arguments, value))
            try:
                found = self.largest(request, axis, start=start, note=f"{second.name} {value}")
            except ScriptError as error:
                if value == second.low:
                    raise
                self.notes.append(f"the frontier ends before {second.name} {value}: {str(error).splitlines()[0]}")
                return
            yield Row(value=value, largest=found)
            if found.best is None:
                return
            guess = found.best.value // 2  # what is twice as long needs about twice as much
            start = (guess, guess + axis.multiple)

    def _run(self, request: Request, label: str) -> Prediction:
        key = (request.alloc_conf, request.optimizer_default, request.arguments)
        if key not in self._known:
            self.progress(f"running {label}")
            try:
                prediction = predict(request, cancelled=self._cancelled.is_set)
            except ScriptError as error:
                raise ScriptError(f"with {label}: {error}") from None
            self._known[key] = prediction
            self.progress(f"{label}: {prediction.verdict.value}")
        return self._known[key]


def _flat_text(axis: Axis, predictions: Sequence[Prediction]) -> str:
    most = max(prediction.interval_bytes[1] for prediction in predictions)
    return (
        f"{axis.option} without an end: larger and larger values need no more than {text_of_bytes(most)} and all fit; "
        f"expected an option that memory depends on, or an end, such as {axis.option}={axis.low}..1024"
    )


def _result(future: Future[Prediction]) -> Prediction | UllageError:
    try:
        return future.result()
    except ScriptError as error:
        return error


def _need(probe: Probe | None) -> Need:
    if probe is None:  # the script failed
        return Need(high_bytes=None, fits=False)
    prediction = probe.prediction
    return Need(high_bytes=None if prediction.oom else prediction.interval_bytes[1], fits=probe.fits)


def fit(
    request: Request,
    axis: Axis,
    *,
    second: Axis | None = None,
    margin_bytes: int = 0,
    levers: bool = True,
    progress: Callable[[str], None] = lambda text: None,
) -> Fit:
    """Find the largest value of an option with which the request's script fits on its card.

    Args:
        request: the script, the card and how long to run; its arguments need not hold the options.
        axis: the option to find the largest value of.
        second: another option: the answer is found beside each of its values, doubled from the lowest on.
        margin_bytes: to leave free on the card.
        levers: whether to try what needs no change to the script (not in a frontier).
        progress: called with a short text for every probe.

    Raises:
        ScriptError: the script failed with a value, for another reason than memory; the text names the value.
        UsageError: the margin leaves nothing, or the request cannot be carried out.
    """
    began = time.perf_counter()
    fitter = Fitter(request, margin_bytes, progress)
    if margin_bytes >= fitter.total_bytes:
        raise UsageError(
            f"a margin of {text_of_bytes(margin_bytes)} leaves nothing of a card of {text_of_bytes(fitter.total_bytes)}"
        )
    frontier = tuple(fitter.frontier(axis, second)) if second else ()
    largest = frontier[0].largest if frontier else fitter.largest(request, axis)
    pulled = tuple(fitter.pull(axis, largest)) if levers and not frontier else ()
    return Fit(
        script=str(request.script),
        arguments=list(request.arguments),
        gpu=largest.probes[0].prediction.gpu,
        total_memory_bytes=fitter.total_bytes,
        margin_bytes=margin_bytes,
        axis=axis,
        largest=largest,
        pulled=pulled,
        notes=tuple(fitter.notes),
        second=second,
        frontier=frontier,
        seconds=time.perf_counter() - began,
    )
