"""Create the report sections about a predicted epoch: a table and a memory curve."""

from collections.abc import Iterator

from ullage.base.units import text_of_bytes
from ullage.gpu.tracing.source import Line
from ullage.predicting.epoch.use import EpochUse, WorstBatch
from ullage.predicting.prediction.data.prediction import Verdict
from ullage.report.report import Curve, Section, Table, TableRow, Tone


def sections_of(epoch: EpochUse, verdict: Verdict, lines: list[Line]) -> Iterator[Section]:
    """Yield a table and a memory curve of an epoch for the report.

    Args:
        epoch: the memory use over the epoch.
        verdict: whether the script fits.
        lines: the source lines that allocated most at the run's peak, in descending order.
    """
    exact = "exact" if epoch.is_exact else "estimated, see the notes below"
    rows = [
        ("batches", f"{epoch.batches:,} batches with {epoch.items:,} items, {epoch.shapes:,} different shapes"),
        ("steps", _steps_text(epoch)),
        ("peak allocated", f"{text_of_bytes(epoch.peak_allocated_bytes)}, {exact}"),
        ("peak reserved", f"{text_of_bytes(epoch.peak_reserved_bytes)}, {exact}{_growth_text(epoch)}"),
    ]
    if epoch.worst is not None:
        rows += list(_worst_rows(epoch.worst, lines))
    if verdict is Verdict.DOES_NOT_FIT:
        rows.append(("batch size that fits", _survival_text(epoch.worst)))
    if epoch.runs_out_at is not None:
        rows.append(("memory runs out", f"at batch {epoch.runs_out_at:,}, found by replay"))
    title = "The whole epoch" if epoch.is_foreseen else "The batches that were seen"
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
    text = f"{epoch.steps_run:,} run; {epoch.batches_replayed:,} batches replayed from steps with the same shapes"
    if epoch.batches_stood_in:
        text += f"; {epoch.batches_stood_in:,} batches replaced by a larger one"
    return text


def _growth_text(epoch: EpochUse) -> str:
    if epoch.last_growth is None:
        return ""
    times = "once" if epoch.growths == 1 else f"{epoch.growths:,} times"
    return f"; grew {times} after the first batch, last in batch {epoch.last_growth:,}"


def _worst_rows(worst: WorstBatch, lines: list[Line]) -> Iterator[tuple[str, str]]:
    alike = "the only one with its shapes" if worst.alike == 1 else f"one of {worst.alike:,} with its shapes"
    yield "worst batch", f"number {worst.index:,} ({alike}): {worst.items:,} items, the longest is {worst.longest:,}"
    yield "its shapes", worst.shape
    if worst.is_the_peak_of_the_run and lines:
        yield "its line", f"{lines[0]} allocated most of the memory in use"


def _survival_text(worst: WorstBatch | None) -> str:
    how = "find the batch size with ullage fit --batches heaviest --vary OPTION"
    if worst is None or worst.items_that_fit is None:
        return how
    return f"about {worst.items_that_fit:,} items of that length, estimated in proportion; {how}"
