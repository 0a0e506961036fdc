"""Run a script in a new process on an emulated GPU, and create a `Prediction` from the result."""

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

# These scripts read back a value that may affect a size or a branch. Later runs track values from the start.
_known_to_read: Final[set[Path]] = set()


def predict(
    request: Request, *, progress: Progress | None = None, cancelled: Callable[[], bool] = lambda: False
) -> Prediction:
    """Run a script on an emulated GPU, and return whether it fits and how much memory it needs.

    Args:
        request: what to run.
        progress: called with a short text whenever the run makes progress.
        cancelled: called a few times per second; once it returns True, the run is ended and a ScriptError is raised.

    Raises:
        ScriptError: the script failed for another reason than memory, or could not be stopped.
        TorchMissingError: no torch that is built for CUDA is installed.
        EmulationError: the GPU cannot be emulated on this machine.
        UnknownGpuError, UsageError: the request is wrong.
    """
    tell = progress or (lambda text: None)
    if _may_begin_without_values(request):
        try:
            return _predict(replace(request, begins_without_values=True), tell, cancelled)
        except ValuesReadError:
            _known_to_read.add(request.script)
            tell("once more, now tracking values, because the script reads values back from the GPU")
    return _predict(request, tell, cancelled)


# Tracking values slows down every operator. But a script that does read values back is run again from its start.
def _may_begin_without_values(request: Request) -> bool:
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
        progress("once more, now tracking values, because the script reads values back after all")
        followed = replace(request, begins_without_values=False).with_options(values="on")
        try:
            return _predict(followed, progress, cancelled)
        except ScriptError as error:  # for example if the script creates a folder that now exists: the first run counts
            if cancelled():
                raise
            failed_again.append(_again_text(request, error))
    if result.outcome.kind == "error":
        if lacks_others(request, result):
            progress("once more, with the values of the other ranks")
            with suppress(
                ScriptError
            ):  # for example if the script creates a folder that now exists: the first error counts
                return _predict(replace(request, asks_all=True), progress, cancelled)
        raise failure_of(request, result, reports[0])
    prediction = assemble(request, torch, reports, time.perf_counter() - began)
    return replace(prediction, notes=[*prediction.notes, *failed_again])


def _again_text(request: Request, error: ScriptError) -> str:
    text = str(error).partition("\n")[0]
    return (
        "values were read back from the GPU only after many steps; a second run in the same folder that tracks values "
        f"failed: {request.name}: {text}; --values on tracks values in the first run"
    )


def _run(request: Request, progress: Progress, cancelled: Callable[[], bool]) -> list[ChildReport]:
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
