"""Run a script in a process of its own on an emulated card, and make a `Prediction` of what it tells.

From the request to the prediction: `predict` chooses how the script begins, `process.start` runs it, in its process
`child.run` measures it, and `verdict.assemble` makes the prediction of the result.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from ullage.base.errors import ScriptError, ValuesReadError
from ullage.gpu.emulator.torch_build import find_torch
from ullage.gpu.values.likely_reads import seems_to_read_none
from ullage.predicting.made_up.folder import with_folder
from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.process.listener import ChildReport, Progress
from ullage.predicting.prediction.process.start import run, run_command
from ullage.predicting.prediction.ranks.exchange import Exchange
from ullage.predicting.prediction.request import ALL, Request, helper_of
from ullage.predicting.prediction.verdict.assemble import assemble
from ullage.predicting.prediction.verdict.failure import failure_of, lacks_others, result_of

__all__ = ["Request", "predict"]

_known_to_read: Final[set[Path]] = set()
"""The scripts that have read something that may decide in a run without values: another run begins with them."""


def predict(
    request: Request, *, progress: Progress | None = None, cancelled: Callable[[], bool] = lambda: False
) -> Prediction:
    """Run the request's script on its card and say whether it fits.

    Args:
        request: what to run.
        progress: called with a short text whenever the run gets further.
        cancelled: asked some times a second; once it says True, the run is ended and a ScriptError raised.

    Raises:
        ScriptError: the script failed for another reason than memory, or could not be stopped.
        TorchMissingError: there is no torch built for CUDA.
        EmulationError: the card cannot be emulated here.
        UnknownGpuError, UsageError: the request cannot be carried out.
    """
    tell = progress or (lambda text: None)
    if _may_begin_without_values(request):
        try:
            return _predict(replace(request, begins_without_values=True), tell, cancelled)
        except ValuesReadError:
            _known_to_read.add(request.script)
            tell("once more, with values, which are read")
    return _predict(request, tell, cancelled)


def _may_begin_without_values(request: Request) -> bool:
    """Tell whether values need not be followed from the start: they slow every operation down.

    It is so where the script looks as if it read none, and nothing is lost if it is begun anew because it does.
    """
    is_plain = not (
        request.is_command
        or request.options["world_size"]
        or request.options["batches"]
        or request.diagnose
        or request.edited
    )
    return (
        is_plain
        and request.values.mode == "auto"
        and not request.options["output"]
        and request.script.suffix == ".py"
        and request.script not in _known_to_read
        and seems_to_read_none(request.script)
    )


def _predict(request: Request, progress: Progress, cancelled: Callable[[], bool]) -> Prediction:
    request.check()
    torch = find_torch()
    began = time.perf_counter()
    with with_folder(request.made_up) as made_up:
        reports = _run(replace(request, made_up_folder=made_up.folder), progress, cancelled)
    if cancelled():
        raise ScriptError(f"the run of {request.name} was cancelled")
    result = result_of(request, reports[0])
    failed_again = []
    if result.missed_values and request.values.mode == "auto":
        progress("once more, as values are read after all")
        followed = replace(request, begins_without_values=False).with_options(values="on")
        try:
            return _predict(followed, progress, cancelled)
        except ScriptError as error:  # as where it makes a folder that is there by now: the first run counts
            if cancelled():
                raise
            failed_again.append(_again_text(request, error))
    if result.outcome.kind == "error":
        if lacks_others(request, result):
            progress("once more, with what the other ranks have")
            with suppress(ScriptError):  # as where it makes a folder that is there by now: the first error counts
                return _predict(replace(request, asks_all=True), progress, cancelled)
        raise failure_of(request, result, reports[0])
    prediction = assemble(request, torch, reports, time.perf_counter() - began)
    return replace(prediction, notes=[*prediction.notes, *failed_again])


def _again_text(request: Request, error: ScriptError) -> str:
    text = str(error).partition("\n")[0]
    return (
        f"values were read after steps that had read none; run once more for them in the same folder, {request.name} "
        f"failed: {text}; --values on follows values in the first run"
    )


def _run(request: Request, progress: Progress, cancelled: Callable[[], bool]) -> list[ChildReport]:
    """Run what is asked for; of ranks that run alone, those too that others wait for."""
    if not request.has_lone_ranks:
        return _run_alone(request, progress, cancelled)
    with nullcontext(request.exchange) if request.exchange is not None else Exchange() as exchange:
        asked = replace(request, exchange=exchange)

        def help_with(rank: int, is_over: Callable[[], bool]) -> str | None:
            told = _run_alone(helper_of(asked, rank), lambda text: None, is_over)[0]
            failed = told.result is not None and told.result.outcome.kind in ("error", "oom")
            return f"{told.result.outcome.type}: {told.result.outcome.text}" if failed and told.result else None

        with exchange.measures(asked.variant, asked.options["rank"], help_with, are_all=asked.processes == ALL):
            return _run_alone(asked, progress, cancelled)


def _run_alone(request: Request, progress: Progress, cancelled: Callable[[], bool]) -> list[ChildReport]:
    return run_command(request, progress, cancelled) if request.is_command else [run(request, progress, cancelled)]
