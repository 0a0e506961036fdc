"""What an epoch that was foreseen changes of a run's figures and of the verdict."""

from dataclasses import replace

from ullage.predicting.epoch.use import EpochUse
from ullage.predicting.prediction.data.prediction import Growth, Verdict
from ullage.predicting.prediction.data.run_result import Elsewhere, RunResult


def with_epoch(result: RunResult) -> RunResult:
    """Let the epoch's reserved memory count, where it is known, and not that of the order in which steps were run."""
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


def _growth(of_the_run: Growth | None, epoch: EpochUse) -> Growth | None:
    """The growth over the epoch: steps that were run in another order grow and shrink by chance."""
    if not epoch.growth_bytes_per_batch:
        return None
    if of_the_run is not None:
        return replace(of_the_run, bytes_per_step=epoch.growth_bytes_per_batch)
    return Growth(bytes_per_step=epoch.growth_bytes_per_batch, file=None, line=None)


def judged_with(epoch: EpochUse, verdict: Verdict, reason: str, *, is_beyond: bool) -> tuple[Verdict, str]:
    """Say what the epoch changes about a verdict, and name its worst batch.

    Args:
        epoch: the use.
        verdict: the verdict by the figures.
        reason: the reason for it.
        is_beyond: whether what was allocated by steps that were run is more than the card has.
    """
    worst = epoch.worst
    if not epoch.is_foreseen or worst is None:
        return verdict, reason
    named = f"the worst batch of the epoch is number {worst.index:,}, {worst.items:,} items of up to {worst.longest:,}"
    if epoch.runs_out_at is not None and (epoch.is_exact or is_beyond):
        return Verdict.DOES_NOT_FIT, f"memory runs out at batch {epoch.runs_out_at:,} of the epoch; {named}"
    if not epoch.is_exact and verdict is not Verdict.UNKNOWN and (epoch.runs_out_at is not None or not is_beyond):
        is_doubtful = epoch.runs_out_at is not None or verdict is Verdict.DOES_NOT_FIT
        if is_doubtful:
            return Verdict.UNKNOWN, f"{reason}, by an estimate of what the epoch reserves; {named}"
    return verdict, f"{reason}; {named}"
