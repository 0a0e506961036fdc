"""Whether a run fits: the interval of the memory that the driver would report as used, and what is decided by it."""

from dataclasses import dataclass

from ullage.gpu.emulator.profile import profile_of
from ullage.gpu.gpus import Gpu
from ullage.predicting.prediction.data.prediction import CudnnUse, Guess, Outside, Placement, Verdict
from ullage.predicting.prediction.data.run_result import Measured, RunResult
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.verdict.epoch import judged_with
from ullage.predicting.prediction.verdict.outside import outside_of
from ullage.predicting.prediction.verdict.reason import (
    deciding,
    growth_text,
    lacking_bytes,
    placement_of,
    reason_of_ending,
    reason_of_size,
    reason_of_unknown,
)
from ullage.predicting.prediction.verdict.workspace import cudnn_of, doubt_of, guesses_of, spare_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedUse:
    """What would be used of the card, in bytes: the interval that decides, and what it is made of."""

    total_bytes: int
    context_bytes: int
    context_interval_bytes: tuple[int, int]
    low_bytes: int
    high_bytes: int
    cudnn: CudnnUse
    guesses: list[Guess]
    outside: Outside
    placement: Placement | None


def expected_use_of(request: Request, gpu: Gpu, result: RunResult, measured: Measured) -> ExpectedUse:
    """Return what a real card would use for what was measured."""
    profile, given = profile_of(gpu), request.context_bytes
    low_context = profile.context_low_bytes if given is None else given
    high_context = profile.context_high_bytes if given is None else given
    cudnn, guesses = cudnn_of(measured), guesses_of(measured)
    below, above = doubt_of(cudnn, guesses)
    reserved = measured.peak_reserved_bytes
    outside = outside_of(result.outside, reserved_bytes=reserved, context_bytes=request.emulated_context_bytes(gpu))
    placement = placement_of(request, measured)
    return ExpectedUse(
        total_bytes=request.total_bytes(gpu),
        context_bytes=profile.context_bytes if given is None else given,
        context_interval_bytes=(low_context, high_context),
        low_bytes=reserved + outside.peak_bytes + low_context - below - (placement.below_bytes if placement else 0),
        high_bytes=reserved + outside.peak_bytes + high_context + above + (placement.above_bytes if placement else 0),
        cudnn=cudnn,
        guesses=guesses,
        outside=outside,
        placement=placement,
    )


def judgement_of(
    request: Request, gpu: Gpu, result: RunResult, measured: Measured, use: ExpectedUse
) -> tuple[Verdict, str]:
    """Decide, and say why: of the whole epoch, where one was gone through."""
    if deciding(result.reads, "unknown"):
        verdict, reason = Verdict.UNKNOWN, reason_of_unknown(result.reads)
    else:
        verdict, reason = _judgement_of_run(request, gpu, result, measured, use)
    if result.epoch is None:
        return verdict, reason
    least = measured.peak_allocated_bytes + use.context_interval_bytes[0]
    is_beyond = least > use.total_bytes or result.outcome.kind == "oom"
    return judged_with(result.epoch, verdict, reason, is_beyond=is_beyond)


def _judgement_of_run(
    request: Request, gpu: Gpu, result: RunResult, measured: Measured, use: ExpectedUse
) -> tuple[Verdict, str]:
    """Decide about the steps that were run, and say why."""
    spare = spare_of(measured)
    timed_out = result.outcome.kind == "time" and not any(step.complete for step in measured.steps)
    if result.outcome.kind == "oom":
        elsewhere = use.placement is not None and use.placement.fits_somewhere
        is_guessed = lacking_bytes(request, gpu, measured.at_oom) <= spare
        verdict = Verdict.UNKNOWN if is_guessed or elsewhere else Verdict.DOES_NOT_FIT
    elif use.low_bytes > use.total_bytes:
        verdict = Verdict.DOES_NOT_FIT
    elif use.high_bytes > use.total_bytes or timed_out or result.measured is None:
        verdict = Verdict.UNKNOWN
    else:
        verdict = Verdict.FITS
    reason = reason_of_ending(request, gpu, result, use.placement, timed_out=timed_out, spare=spare)
    if reason is None:
        size = reason_of_size(verdict, use.low_bytes, use.high_bytes, use.total_bytes, use.cudnn, use.placement)
        reason = size + growth_text(measured.growth, use.total_bytes - use.high_bytes)
    return verdict, reason
