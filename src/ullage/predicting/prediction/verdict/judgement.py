"""Decide whether a script fits on a GPU, from the lowest and the highest possible memory use."""

from dataclasses import dataclass, replace
from typing import Final

from ullage.gpu.emulator.profile import profile_of
from ullage.predicting.epoch.use import EpochUse
from ullage.predicting.prediction.data.prediction import CudnnUse, Growth, Guess, Outside, Placement, Verdict
from ullage.predicting.prediction.data.run_result import Elsewhere, Measured, RunResult
from ullage.predicting.prediction.request import Request
from ullage.predicting.prediction.verdict.outside import outside_of
from ullage.predicting.prediction.verdict.reason import (
    completed_steps,
    deciding,
    growth_text,
    lacking_bytes,
    placement_of,
    reason_of_ending,
    reason_of_size,
    reason_of_unknown,
    steps_text,
)
from ullage.predicting.prediction.verdict.workspace import cudnn_of, doubt_of, guesses_of, spare_of

_STEPS_NEEDED: Final = 2
"""The completed training steps that a run needs if the time limit ends it.

Most optimizers create their states at the end of the first step, so the second step needs more memory than the first.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedUse:
    """The lowest and the highest expected GPU memory use in bytes, and its parts."""

    total_bytes: int
    context_bytes: int
    context_interval_bytes: tuple[int, int]
    low_bytes: int
    high_bytes: int
    cudnn: CudnnUse
    guesses: list[Guess]
    outside: Outside
    placement: Placement | None


def expected_use_of(request: Request, result: RunResult, measured: Measured) -> ExpectedUse:
    """Return the expected memory use on a real GPU, from the measured use on the emulated GPU."""
    profile, given = profile_of(request.gpu), request.context_bytes
    low_context = profile.context_low_bytes if given is None else given
    high_context = profile.context_high_bytes if given is None else given
    cudnn, guesses = cudnn_of(measured), guesses_of(measured)
    below, above = doubt_of(cudnn, guesses)
    reserved = measured.peak_reserved_bytes
    outside = outside_of(result.outside, reserved_bytes=reserved, context_bytes=request.emulated_context_bytes)
    placement = placement_of(request, measured)
    return ExpectedUse(
        total_bytes=request.total_bytes,
        context_bytes=profile.context_bytes if given is None else given,
        context_interval_bytes=(low_context, high_context),
        low_bytes=reserved + outside.peak_bytes + low_context - below - (placement.below_bytes if placement else 0),
        high_bytes=reserved + outside.peak_bytes + high_context + above + (placement.above_bytes if placement else 0),
        cudnn=cudnn,
        guesses=guesses,
        outside=outside,
        placement=placement,
    )


def judgement_of(request: Request, result: RunResult, measured: Measured, use: ExpectedUse) -> tuple[Verdict, str]:
    """Return whether a script fits, and the reason. If an epoch was predicted, the answer is for the epoch."""
    if deciding(result.reads, "unknown"):
        verdict, reason = Verdict.UNKNOWN, reason_of_unknown(result.reads)
    else:
        verdict, reason = _judgement_of_run(request, result, measured, use)
    if result.epoch is None:
        return verdict, reason
    least = measured.peak_allocated_bytes + use.context_interval_bytes[0]
    is_beyond = least > use.total_bytes or result.outcome.kind == "oom"
    return judged_with(result.epoch, verdict, reason, is_beyond=is_beyond)


def _judgement_of_run(request: Request, result: RunResult, measured: Measured, use: ExpectedUse) -> tuple[Verdict, str]:
    spare = spare_of(measured)
    is_cut_short = result.outcome.kind == "time" and completed_steps(measured) < _STEPS_NEEDED
    if result.outcome.kind == "oom":
        elsewhere = use.placement is not None and use.placement.fits_somewhere
        is_guessed = lacking_bytes(request, measured.at_oom) <= spare
        verdict = Verdict.UNKNOWN if is_guessed or elsewhere else Verdict.DOES_NOT_FIT
    elif use.low_bytes > use.total_bytes:
        verdict = Verdict.DOES_NOT_FIT
    elif use.high_bytes > use.total_bytes or is_cut_short or result.measured is None:
        verdict = Verdict.UNKNOWN
    else:
        verdict = Verdict.FITS
    reason = reason_of_ending(request, result, use.placement, is_cut_short=is_cut_short, spare=spare)
    if reason is None:
        size = reason_of_size(verdict, use.low_bytes, use.high_bytes, use.total_bytes, use.cudnn, use.placement)
        reason = size + growth_text(measured.growth, use.total_bytes - use.high_bytes)
        if verdict is Verdict.FITS and result.outcome.kind in ("steps", "time"):
            reason += steps_text(measured)
    return verdict, reason


def with_epoch(result: RunResult) -> RunResult:
    """Return a copy of a result in which the peak of reserved memory is the peak of a whole epoch.

    Return the result unchanged if no epoch was predicted.
    """
    measured, epoch = result.measured, result.epoch
    if measured is None or epoch is None or not epoch.batches or not epoch.is_foreseen:
        return result
    reserved = epoch.peak_reserved_bytes
    if not epoch.is_exact:
        reserved = max(reserved, measured.peak_reserved_bytes)
    reserved = max(reserved, measured.peak_allocated_bytes)
    elsewhere = measured.elsewhere
    if elsewhere is not None:
        low, high = epoch.elsewhere_bytes or (reserved, reserved)
        elsewhere = Elsewhere(
            ties=epoch.ties,
            low_bytes=min(low, reserved),
            high_bytes=max(high, reserved),
            fits_somewhere=epoch.runs_out_at is None and elsewhere.fits_somewhere,
            is_certain=epoch.is_exact and epoch.elsewhere_bytes is not None,
        )
    used = result.outside.peak_used_bytes + reserved - measured.peak_reserved_bytes
    return replace(
        result,
        outside=replace(result.outside, peak_used_bytes=used),
        measured=replace(
            measured,
            peak_reserved_bytes=reserved,
            elsewhere=elsewhere,
            growth=_growth(measured.growth, epoch),
            settled=epoch.is_exact,
        ),
    )


# The run's steps do not show growth, because they ran in another order than the batches of the epoch.
def _growth(of_the_run: Growth | None, epoch: EpochUse) -> Growth | None:
    if not epoch.growth_bytes_per_batch:
        return None
    if of_the_run is not None:
        return replace(of_the_run, bytes_per_step=epoch.growth_bytes_per_batch)
    return Growth(bytes_per_step=epoch.growth_bytes_per_batch, file=None, line=None)


def judged_with(epoch: EpochUse, verdict: Verdict, reason: str, *, is_beyond: bool) -> tuple[Verdict, str]:
    """Return whether the epoch fits, and a reason that names its worst batch.

    Args:
        epoch: the memory use over the epoch.
        verdict: whether the steps of the run fit.
        reason: the reason for it.
        is_beyond: whether the steps that were run already allocated more than the GPU has.
    """
    worst = epoch.worst
    if not epoch.is_foreseen or worst is None:
        return verdict, reason
    named = (
        f"the worst batch of the epoch is number {worst.index:,}: {worst.items:,} items, the longest is "
        f"{worst.longest:,}"
    )
    if epoch.runs_out_at is not None and (epoch.is_exact or is_beyond):
        return Verdict.DOES_NOT_FIT, f"memory runs out at batch {epoch.runs_out_at:,} of the epoch; {named}"
    if not epoch.is_exact and verdict is not Verdict.UNKNOWN and (epoch.runs_out_at is not None or not is_beyond):
        is_doubtful = epoch.runs_out_at is not None or verdict is Verdict.DOES_NOT_FIT
        if is_doubtful:
            return Verdict.UNKNOWN, f"{reason}, according to an estimate of reserved memory over the epoch; {named}"
    return verdict, f"{reason}; {named}"
