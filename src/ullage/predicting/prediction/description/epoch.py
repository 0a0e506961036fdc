"""A foreseen epoch among the other figures of a prediction: what the run tells it, and what it changes."""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ullage.base.units import text_of_bytes
from ullage.gpu.emulator import library
from ullage.gpu.tracing.source import Line
from ullage.predicting.epoch.use import EpochUse, WorstBatch
from ullage.predicting.prediction.data.prediction import Growth, Verdict
from ullage.predicting.prediction.data.run_result import Elsewhere, RunResult
from ullage.report.report import Curve, Section, Table, TableRow, Tone

if TYPE_CHECKING:
    from ullage.gpu.emulator.emulate import Emulation
    from ullage.gpu.tracing.journal import Entries
    from ullage.predicting.epoch.watch import EpochWatch

NO_LOADER: Final = (
    "no DataLoader fed the training, so --batches heaviest had no epoch to go through: the figures are of the steps "
    "that were run"
)
RAN_OUT_BEFORE: Final = "memory ran out before the epoch could be gone through"
WIDER: Final = 16
"""So many times the memory has the card on which steps are run out of their order: what is left of them there tells
nothing of the epoch, and must not make a step fail."""
_LEAST_SECONDS: Final = 20.0
_SHARE_OF_REPLAY: Final = 0.2


def widen(emulation: "Emulation") -> int:
    """Give the cards more memory from now on; returns by how many bytes."""
    figures = dict(emulation.figures)
    total = figures["total_memory_bytes"]
    figures["total_memory_bytes"] = WIDER * total
    library.change_cards(emulation.gpu, figures, count=emulation.count)
    return (WIDER - 1) * total


def epoch_of(
    watch: "EpochWatch",
    entries: "Entries",
    emulation: "Emulation",
    torch_version: str,
    *,
    ran_out: bool,
    graphs: int,
    ranks: int,
) -> EpochUse | None:
    """Return what the epoch of a run that is over uses; None where no loader fed the training."""
    from ullage.predicting.epoch.result import RunFigures, use_of
    from ullage.predicting.prediction.measurement import trace

    device = watch.ledger.device
    levels = trace.levels_of(entries, device)
    reserved = int(levels.reserved.max(initial=0))
    # What libraries took beside PyTorch.
    beside = max(0, library.used_peak_bytes(device) - emulation.context_bytes - reserved)
    figures = RunFigures(
        torch_version=torch_version,
        placement=emulation.placement,
        room_bytes=emulation.total_memory_bytes - emulation.context_bytes - beside,
        peak_allocated_bytes=int(levels.allocated.max(initial=0)),
        peak_reserved_bytes=reserved,
        ran_out=ran_out,
        graphs=graphs,
        ranks=ranks,
    )
    deadline = time.monotonic() + max(_LEAST_SECONDS, watch.seconds * _SHARE_OF_REPLAY)
    use = use_of(watch, figures, deadline=deadline)
    if use is None or use.worst is None or not len(levels.index):
        return use
    peak = int(levels.index[int(levels.allocated.argmax())])
    return replace(use, worst=replace(use.worst, is_the_peak_of_the_run=_is_within(watch, use.worst, peak)))


def _is_within(watch: "EpochWatch", worst: WorstBatch, peak: int) -> bool:
    """Tell whether the run's peak lies in a step of the worst batch's shapes."""
    plan = watch.plan
    place = worst.index // watch.group
    for unit in watch.units:
        if unit.journal_start <= peak < unit.journal_end:
            return unit.place == place or (plan is not None and unit.key >= 0 and unit.key == int(plan.keys[place]))
    return False


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


def sections_of(epoch: EpochUse, verdict: Verdict, lines: list[Line]) -> Iterator[Section]:
    """Yield the table and the curve of an epoch.

    Args:
        epoch: the use.
        verdict: the verdict on the script.
        lines: the lines that allocated most at the run's peak, the first of which allocated most.
    """
    exact = "exact" if epoch.is_exact else "an estimate: see below"
    rows = [
        ("batches", f"{epoch.batches:,} of {epoch.shapes:,} shapes, {epoch.items:,} items"),
        ("steps", _steps_text(epoch)),
        ("allocated at most", f"{text_of_bytes(epoch.peak_allocated_bytes)}, {exact}"),
        ("reserved at most", f"{text_of_bytes(epoch.peak_reserved_bytes)}, {exact}{_growth_text(epoch)}"),
    ]
    if epoch.worst is not None:
        rows += list(_worst_rows(epoch.worst, lines))
    if verdict is Verdict.DOES_NOT_FIT:
        rows.append(("would survive", _survival_text(epoch.worst)))
    if epoch.runs_out_at is not None:
        rows.append(("memory runs out", f"at batch {epoch.runs_out_at:,}, by replay"))
    title = "The epoch, every batch of it" if epoch.is_foreseen else "The batches that were met"
    tone = Tone.BAD if epoch.runs_out_at is not None else Tone.PLAIN
    yield Table(title=title, columns=("", ""), rows=tuple(TableRow(cells=row, tone=tone) for row in rows))
    if epoch.reserved_bytes:
        yield Curve(
            title="Reserved memory over the epoch's batches",
            values=tuple(epoch.reserved_bytes),
            marks=(),
            mark_label="",
            remark=f"{epoch.batches:,} batches in their real order",
        )


def _steps_text(epoch: EpochUse) -> str:
    text = f"{epoch.steps_run:,} run, {epoch.batches_replayed:,} batches replayed from steps of the same shapes"
    if epoch.batches_stood_in:
        text += f", for {epoch.batches_stood_in:,} a heavier one stands in"
    return text


def _growth_text(epoch: EpochUse) -> str:
    if epoch.last_growth is None:
        return ""
    times = "once" if epoch.growths == 1 else f"{epoch.growths:,} times"
    return f"; grew {times} after the first batch, last in batch {epoch.last_growth:,}"


def _worst_rows(worst: WorstBatch, lines: list[Line]) -> Iterator[tuple[str, str]]:
    alike = "the only one of its shapes" if worst.alike == 1 else f"one of {worst.alike:,} of its shapes"
    yield "worst batch", f"number {worst.index:,} ({alike}): {worst.items:,} items, longest {worst.longest:,}"
    yield "its shapes", worst.shape
    if worst.is_the_peak_of_the_run and lines:
        yield "its line", f"{lines[0]} allocated most of what was alive"


def _survival_text(worst: WorstBatch | None) -> str:
    """How to learn the batch size that survives the worst batch, and an estimate where there is one."""
    how = "ullage fit --batches heaviest --vary OPTION finds the batch size"
    if worst is None or worst.items_that_fit is None:
        return how
    return f"about {worst.items_that_fit:,} items of that length, in proportion; {how}"


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
