"""A script in which values that nobody knows decide: run with several seeds, the peaks as an interval."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from ullage._errors import ScriptError
from ullage._units import text_of_bytes
from ullage.prediction.draw_interval import interval_of_peaks
from ullage.prediction.prediction import DrawPeaks, Prediction, Verdict
from ullage.prediction.reason import deciding
from ullage.prediction.request import Request
from ullage.prediction.script import predict

AT_ONCE: Final = 2  # a run needs a core and some memory


def predict_with_draws(
    request: Request,
    *,
    progress: Callable[[str], None] = lambda text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Prediction:
    """Predict a script; if drawn values may have decided, predict it with further seeds, and put all together.

    Raises:
        UllageError: as `predict` does.
    """
    first = predict(request, progress=progress, cancelled=cancelled)
    if request.draws == 1 or not deciding(first.reads, "drawn"):
        return first
    stop = threading.Event()
    plain = replace(request, values=replace(request.values, mode=_later(request)), snapshot=None, echo=False)

    def run(number: int) -> Prediction:
        progress(f"other values, {number + 1} of {request.draws}")
        seed = request.values.seed + number
        return predict(
            replace(plain, values=replace(plain.values, seed=seed)), cancelled=lambda: cancelled() or stop.is_set()
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(run, number) for number in range(1, request.draws)]
        try:
            others = [future.result() for future in futures]
        except ScriptError as error:
            stop.set()
            raise type(error)(f"with the values of another seed: {error}") from None
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return together([first, *others])


def _later(request: Request) -> str:
    return "on" if request.values.mode == "auto" else request.values.mode


def together(runs: list[Prediction]) -> Prediction:
    """Make one prediction of those of several seeds: the figures of the fullest, the interval and verdict of all.

    The interval holds one more run in 95 of 100 cases (`interval_of_peaks`), which is wider than the runs themselves.
    """
    fullest = max(runs, key=lambda each: (each.verdict is Verdict.DOES_NOT_FIT, each.interval_bytes[1]))
    low = math.floor(interval_of_peaks([each.interval_bytes[0] for each in runs])[0])
    high = math.ceil(interval_of_peaks([each.interval_bytes[1] for each in runs])[1])
    verdicts = {each.verdict for each in runs}
    if verdicts == {Verdict.FITS} and high > fullest.total_memory_bytes:
        verdicts.add(Verdict.UNKNOWN)
    draws = [
        DrawPeaks(
            seed=each.values.seed,
            verdict=each.verdict,
            peak_allocated_bytes=each.peak_allocated_bytes,
            peak_reserved_bytes=each.peak_reserved_bytes,
        )
        for each in runs
    ]
    verdict, reason = fullest.verdict, fullest.reason
    if len(verdicts) > 1:
        verdict = Verdict.UNKNOWN
        reason = (
            f"between {text_of_bytes(low)} and {text_of_bytes(high)} would be used of "
            f"{text_of_bytes(fullest.total_memory_bytes)}, by values that only a real card has, and these decide"
        )
    # A page draws one run; the first is the one whose snapshot was written.
    return replace(
        fullest,
        verdict=verdict,
        reason=reason,
        interval_bytes=(low, high),
        draws=draws,
        picture=fullest.picture,
        snapshot_error=runs[0].snapshot_error,
        seconds=runs[0].seconds,
    )
