"""Predict every rank of a distributed script, and return the prediction of the rank that uses the most memory."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ullage.base.errors import ScriptError, UsageError
from ullage.predicting.prediction.data.prediction import Prediction, RankPeaks, fullness_of
from ullage.predicting.prediction.ranks.exchange import Exchange
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.several.draws import AT_ONCE, at_once, predict_with_draws

MOST: Final = 64


def predict_all_ranks(request: Request, *, progress: Callable[[str], None] = lambda text: None) -> Prediction:
    """Predict all ranks of a distributed script, two at a time. Return the prediction of the rank that uses the most
    memory.

    Raises:
        UsageError: the request has no world size, or a world size above 64.
        ScriptError: a rank failed; the text names the rank.
    """
    if request.options["world_size"] is None or not 1 <= request.options["world_size"] <= MOST:
        raise UsageError(f'rank="all" runs every rank; give world_size= too, from 1 to {MOST}')
    predictions, refusal = _predict_each(request, progress, asks_all=True)
    notes: list[str] = []
    if refusal is not None:
        progress("each rank again, using its own numbers in place of the other ranks' numbers")
        predictions, _ = _predict_each(request, progress, asks_all=False)
        notes = [
            f"each rank used its own numbers in place of what the other ranks contribute to collectives: {refusal}"
        ]
    fullest = max(predictions, key=lambda each: (*fullness_of(each), each.peak_allocated_bytes))
    if request.snapshot is not None:
        progress(f"rank {fullest.rank} again, to write its snapshot")
        fullest = predict_with_draws(replace(request, asks_all=refusal is None).with_options(rank=fullest.rank))
    ranks = [RankPeaks.of(each, rank=each.rank) for each in predictions]
    return replace(fullest, notes=[*fullest.notes, *notes], ranks=ranks)


# If a request between ranks is refused, all runs end: the size of an object could come from one rank and its content
# from another.
def _predict_each(
    request: Request, progress: Callable[[str], None], *, asks_all: bool
) -> tuple[list[Prediction], str | None]:
    cancelled = threading.Event()

    def is_over() -> bool:
        return cancelled.is_set() or (asks_all and exchange.refusal is not None)

    def run(rank: int) -> Prediction:
        progress(f"rank {rank} of {request.options['world_size']}")
        asked = replace(request, exchange=exchange, asks_all=asks_all).with_options(rank=rank, snapshot=None)
        try:
            return predict_with_draws(asked, cancelled=is_over)
        except ScriptError as error:
            raise type(error)(f"rank {rank}: {error}") from None

    with Exchange() as exchange:
        try:
            predictions = at_once(run, range(request.options["world_size"] or 0), cancelled, most=AT_ONCE)
        except ScriptError:
            if asks_all and exchange.refusal is not None:
                return [], exchange.refusal
            raise
    return (predictions, None) if not asks_all or exchange.refusal is None else ([], exchange.refusal)
