"""Predicts every rank of a distributed script, each alone in a process, and returns the fullest."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from ullage._errors import ScriptError, UsageError
from ullage.prediction.exchange import Exchange
from ullage.prediction.prediction import Prediction, RankPeaks, Verdict
from ullage.prediction.request import Request
from ullage.prediction.several.draws import predict_with_draws

MOST: Final = 64
AT_ONCE: Final = 2
_ORDER: Final = (Verdict.FITS, Verdict.UNKNOWN, Verdict.DOES_NOT_FIT)


def predict_all_ranks(request: Request, *, progress: Callable[[str], None] = lambda text: None) -> Prediction:
    """Predict each rank of the request's world, two at a time, and return the prediction of the fullest.

    Raises:
        UsageError: the request has no world size, or one of more than 64 ranks.
        ScriptError: a rank failed; the text names it.
    """
    if request.world_size is None or not 1 <= request.world_size <= MOST:
        raise UsageError(f"--rank all runs every rank; expected a --world-size of 1 to {MOST} beside it")
    cancelled = threading.Event()

    def run(rank: int) -> Prediction:
        progress(f"rank {rank} of {request.world_size}")
        asked = replace(request, rank=rank, snapshot=None, exchange=exchange, asks_all=True)
        try:
            return predict_with_draws(asked, cancelled=cancelled.is_set)
        except ScriptError as error:
            raise type(error)(f"rank {rank}: {error}") from None

    with Exchange() as exchange, ThreadPoolExecutor(AT_ONCE) as pool:
        futures = [pool.submit(run, rank) for rank in range(request.world_size)]
        try:
            predictions = [future.result() for future in futures]
        except BaseException:
            cancelled.set()
            pool.shutdown(cancel_futures=True)
            raise
    fullest = max(predictions, key=_fullness)
    if request.snapshot is not None:
        progress(f"rank {fullest.rank} once more, for its snapshot")
        fullest = predict_with_draws(replace(request, rank=fullest.rank, asks_all=True))
    return replace(fullest, ranks=[_peaks(prediction) for prediction in predictions])


def _fullness(prediction: Prediction) -> tuple[int, int, int]:
    """Return what ranks are compared by; of those that reserve the same, the one that has allocated more is fuller."""
    return _ORDER.index(prediction.verdict), prediction.interval_bytes[1], prediction.peak_allocated_bytes


def _peaks(prediction: Prediction) -> RankPeaks:
    return RankPeaks(
        rank=prediction.rank,
        verdict=prediction.verdict,
        peak_allocated_bytes=prediction.peak_allocated_bytes,
        peak_reserved_bytes=prediction.peak_reserved_bytes,
    )
