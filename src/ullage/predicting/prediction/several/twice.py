"""Predict a script twice: with and without torch.compile, or from the start and from a checkpoint."""

import shlex
from collections.abc import Callable
from dataclasses import replace

from ullage.base.errors import ScriptError, UllageError, UsageError, quoted
from ullage.base.secrets import without_secrets
from ullage.predicting.prediction.data.prediction import Peaks, PhaseUse, Prediction, RunPeaks, fullness_of
from ullage.predicting.prediction.phases.name import PhaseName
from ullage.predicting.prediction.predict import predict
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.several.draws import predict_with_draws


def arguments_of(text: str) -> tuple[str, ...]:
    """Split a text into command-line arguments as a shell does.

    Raises:
        UsageError: the text has no argument, or a quotation mark is not closed.
    """
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"resume={quoted(text)} cannot be read: {str(error).lower()}") from None
    if not found:
        raise UsageError(
            "resume= has no arguments; expected the arguments with which the script resumes, in quotation marks"
        )
    return found


def predict_resumed(
    request: Request,
    resume: str | None,
    work: Callable[..., Prediction],
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> Prediction:
    """Predict a script until it saves a checkpoint, and again when it resumes. Return the prediction that uses more
    memory.

    Args:
        request: the first run.
        resume: the arguments to add in the second run; None for a single run.
        work: the function that predicts one run.
        progress: called with a short text whenever a run makes progress.

    Raises:
        UllageError: as `work` does; if the second run failed, the text says so.
    """
    if resume is None:
        return work(request, progress=progress)
    arguments = arguments_of(resume)
    first = work(request.with_options(until=request.options["until"] or "save"), progress=progress)
    if first.oom is not None:
        note = "the first run ran out of memory, so no resumed run followed"
        return replace(first, notes=[*first.notes, note])
    second_request = replace(request, arguments=(*request.arguments, *arguments)).with_options(snapshot=None)
    try:
        second = work(second_request, progress=lambda text: progress(f"resumed: {text}"))
    except ScriptError as error:
        raise type(error)(f"resumed with {shlex.join(without_secrets(arguments))}: {error}") from None
    runs = [RunPeaks.of(each, arguments=each.arguments, phases=each.phases) for each in (first, second)]
    fullest = max(first, second, key=fullness_of)
    return replace(
        fullest,
        phases=[*(phase for phase in first.phases if phase.name != PhaseName.RESUMING), _resuming(second)],
        notes=list(dict.fromkeys([*first.notes, *second.notes])),
        snapshot_error=first.snapshot_error,
        runs=runs,
    )


def _resuming(run: Prediction) -> PhaseUse:
    highest = max(run.phases, key=lambda phase: phase.peak_allocated_bytes, default=None)
    return PhaseUse(
        name=PhaseName.RESUMING.value,
        first_step=0,
        peak_allocated_bytes=run.peak_allocated_bytes,
        before_bytes=0,
        peak_reserved_bytes=run.peak_reserved_bytes,
        file=highest.file if highest else None,
        line=highest.line if highest else None,
        count=1,
    )


def predict_beside_eager(request: Request, *, progress: Callable[[str], None] = lambda text: None) -> Prediction:
    """Predict a script, and predict it again without torch.compile if it used torch.compile.

    Raises:
        UllageError: as `predict` does. If only the run without torch.compile fails, that is a note of the prediction.
    """
    prediction = predict_with_draws(request, progress=progress)
    if not prediction.compiled_graphs:
        return prediction
    try:
        eager = predict(
            replace(request, eager=True, picture=False).with_options(
                values_seed=prediction.values.seed, snapshot=None, output=False
            ),
            progress=lambda text: progress(f"without torch.compile: {text}"),
        )
    except UllageError as error:
        note = f"without torch.compile the script fails: {str(error).splitlines()[0]}"
        return replace(prediction, notes=[*prediction.notes, note])
    return replace(prediction, eager=Peaks.of(eager))
