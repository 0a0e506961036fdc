"""Run a script with several random seeds if unknown values may affect its memory, and report the range of peaks."""

import math
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from ullage.base.errors import ScriptError, ValuesError
from ullage.base.units import text_of_bytes
from ullage.gpu.values.choice import ValuesMode
from ullage.predicting.prediction.data.prediction import DrawPeaks, Prediction, Verdict
from ullage.predicting.prediction.predict import predict
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.verdict.draw_interval import interval_of_peaks
from ullage.predicting.prediction.verdict.reason import deciding

T = TypeVar("T")
R = TypeVar("R")
AT_ONCE: Final = 2  # one run needs one core and some memory


def predict_with_draws(
    request: Request,
    *,
    progress: Callable[[str], None] = lambda text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Prediction:
    """Predict a script, with several seeds if random values may have affected its memory.

    If the script fails with a further seed, the first prediction remains valid.

    Raises:
        UllageError: as `predict` does.
    """
    if request.values.routing == "auto":
        routing = "balanced" if (request.options["world_size"] or 1) > 1 else "drawn"
        request = request.with_options(routing=routing)
        if routing == "balanced":
            return predict_with_worst_routing(request, progress=progress, cancelled=cancelled)
    first = predict(request, progress=progress, cancelled=cancelled)
    if request.options["draws"] == 1 or not deciding(first.reads, "drawn"):
        return first
    with _snapshots_beside(request.snapshot) as folder:
        ran, failed = [first], dict[int, ScriptError]()
        for seed, ended in _others(request, folder, progress, cancelled):
            if isinstance(ended, Prediction):
                ran.append(ended)
            else:
                failed[seed] = ended
        found = together(ran) if len(ran) > 1 else replace(first, draws=[DrawPeaks.of(first, seed=first.values.seed)])
        if folder is not None and found.values.seed != first.values.seed:
            found = _moved(found, folder, request)
    return _with_failures(found, failed, request.options["draws"]) if failed else found


def predict_with_worst_routing(
    request: Request, *, progress: Callable[[str], None], cancelled: Callable[[], bool]
) -> Prediction:
    """Predict a mixture-of-experts script with balanced routing, and extend the range to the worst routing.

    In the worst case, all tokens go to the first experts, and their rank receives the tokens of all other ranks.
    """
    first = predict_with_draws(request, progress=progress, cancelled=cancelled)
    if not first.values.routed or request.options["draws"] == 1:
        return first
    progress("all tokens to the first experts")
    other = request.with_options(values=_later(request), routing="worst", snapshot=None, output=False)
    try:
        worst = predict(other, cancelled=cancelled)
    except ScriptError as error:
        if cancelled():
            raise
        note = f"tokens are routed evenly to experts; with all tokens on the first experts the script failed: {error}"
        return replace(first, notes=[*first.notes, note.partition("\n")[0]])
    return _with_worst(first, worst)


def _with_worst(first: Prediction, worst: Prediction) -> Prediction:
    low = min(first.interval_bytes[0], worst.interval_bytes[0])
    high = max(first.interval_bytes[1], worst.interval_bytes[1])
    note = (
        "tokens are routed evenly to experts (--routing balanced); the range includes the worst case, all tokens on "
        f"the first experts: {text_of_bytes(worst.peak_allocated_bytes)} allocated, "
        f"{text_of_bytes(worst.peak_reserved_bytes)} reserved on this rank"
    )
    verdict, reason = first.verdict, first.reason
    if worst.verdict is not first.verdict:
        verdict = Verdict.UNKNOWN
        reason = (
            f"the result depends on token routing: with even routing to all experts: {first.verdict.value}; with all "
            f"tokens on the first experts: {worst.verdict.value}"
        )
    return replace(first, verdict=verdict, reason=reason, interval_bytes=(low, high), notes=[*first.notes, note])


def _others(
    request: Request, snapshots: Path | None, progress: Callable[[str], None], cancelled: Callable[[], bool]
) -> list[tuple[int, Prediction | ScriptError]]:
    stop = threading.Event()
    plain = request.with_options(values=_later(request), output=False)

    def run(number: int) -> tuple[int, Prediction | ScriptError]:
        progress(f"run {number + 1} of {request.options['draws']} with other random values")
        seed = request.values.seed + number
        own = plain.with_options(values_seed=seed, snapshot=snapshots and _snapshot_of(seed, snapshots))
        try:
            return seed, predict(own, cancelled=lambda: cancelled() or stop.is_set())
        except ScriptError as error:
            if cancelled() or stop.is_set():
                raise
            return seed, error

    return at_once(run, range(1, request.options["draws"]), stop)


# In the folder of the requested snapshot, so that a file can be moved there.
@contextmanager
def _snapshots_beside(snapshot: Path | None) -> Iterator[Path | None]:
    if snapshot is None:
        yield None
        return
    try:
        folder = tempfile.TemporaryDirectory(dir=snapshot.absolute().parent, prefix=".ullage-")
    except OSError:  # The first seed's snapshot could not be written either.
        yield None
        return
    with folder as path:
        yield Path(path)


def _snapshot_of(seed: int, folder: Path) -> Path:
    return folder / f"{seed}.pickle"


def _moved(fullest: Prediction, folder: Path, request: Request) -> Prediction:
    assert request.snapshot is not None
    if fullest.snapshot_error is not None:
        request.snapshot.unlink(missing_ok=True)
        return fullest
    try:
        _snapshot_of(fullest.values.seed, folder).replace(request.snapshot)
    except OSError as error:
        return replace(fullest, snapshot_error=error.strerror or str(error))
    return fullest


# If random values may have caused a failure, the verdict becomes uncertain.
def _with_failures(found: Prediction, failed: dict[int, ScriptError], count: int) -> Prediction:
    seed, error = next(iter(sorted(failed.items(), key=lambda each: not isinstance(each[1], ValuesError))))
    ran = count - len(failed)
    one = ", so the range comes from one run" if ran == 1 else ""
    text = str(error).partition("\n")[0]
    note = f"{ran} of {count} seeds ran{one}; with seed {seed} the script failed: {text}"
    if isinstance(error, ValuesError):
        reason = f"the script fails with random values of seed {seed}, possibly because of these values: {text}"
        found = replace(found, verdict=Verdict.UNKNOWN, reason=reason)
    return replace(found, notes=[*found.notes, note])


def _later(request: Request) -> ValuesMode:
    return "on" if request.values.mode == "auto" else request.values.mode


def together(runs: list[Prediction]) -> Prediction:
    """Combine the predictions for several seeds into one. The figures are those of the run with the most memory.

    The peak memory of a run with another seed is within `interval_bytes` in 95 of 100 cases.
    """
    fullest = max(runs, key=lambda each: (each.verdict is Verdict.DOES_NOT_FIT, each.interval_bytes[1]))
    low = math.floor(interval_of_peaks([each.interval_bytes[0] for each in runs])[0])
    high = math.ceil(interval_of_peaks([each.interval_bytes[1] for each in runs])[1])
    verdicts = {each.verdict for each in runs}
    if verdicts == {Verdict.FITS} and high > fullest.total_memory_bytes:
        verdicts.add(Verdict.UNKNOWN)
    verdict, reason = fullest.verdict, fullest.reason
    if len(verdicts) > 1:
        verdict = Verdict.UNKNOWN
        reason = (
            f"{text_of_bytes(low)} to {text_of_bytes(high)} of {text_of_bytes(fullest.total_memory_bytes)} would be "
            "used, depending on values that only a real GPU computes"
        )
    return replace(
        fullest,
        verdict=verdict,
        reason=reason,
        interval_bytes=(low, high),
        draws=[DrawPeaks.of(each, seed=each.values.seed) for each in runs],
        seconds=runs[0].seconds,
    )


def at_once(work: Callable[[T], R], items: Iterable[T], stop: threading.Event, *, most: int = AT_ONCE) -> list[R]:
    """Call `work` for each item in a few threads, and return the results. The first exception ends all threads.

    Args:
        work: the function to call in threads.
        items: its arguments.
        stop: an event that is set when one call has raised an exception, so that the others end.
        most: the number of calls at the same time.
    """
    with ThreadPoolExecutor(most) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
