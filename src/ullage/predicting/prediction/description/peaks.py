"""Tables of the peaks of runs: of ranks, processes, seeds, of runs beside another."""

from collections.abc import Iterable
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.predicting.prediction.data.prediction import Peaks, Prediction, Verdict
from ullage.report.report import Table, TableRow, Tone

TONES: Final = {Verdict.FITS: Tone.GOOD, Verdict.DOES_NOT_FIT: Tone.BAD, Verdict.UNKNOWN: Tone.UNSURE}


def table_of_peaks(
    title: str,
    names: tuple[str, ...],
    runs: Iterable[tuple[tuple[str, ...], Peaks | Prediction]],
    *,
    fullest: Peaks | Prediction | None = None,
    mark: str = "",
    has_bars: bool = False,
    has_tones: bool = False,
) -> Table:
    """Return a table with a row for each run.

    Args:
        title: the table's title.
        names: the headings of the columns before the peaks.
        runs: what these columns hold, and the run.
        fullest: the run whose row is marked.
        mark: how it is marked.
        has_bars: whether each row has a bar for its reserved memory.
        has_tones: whether each row has the colour of its verdict.
    """
    runs = list(runs)
    most = max((run.peak_reserved_bytes for _, run in runs), default=0) or 1
    return Table(
        title=title,
        columns=(*names, "allocated", "reserved", "verdict"),
        rows=tuple(
            TableRow(
                cells=(
                    *cells,
                    text_of_bytes(run.peak_allocated_bytes),
                    text_of_bytes(run.peak_reserved_bytes),
                    run.verdict.value + (mark if run is fullest else ""),
                ),
                tone=TONES[run.verdict] if has_tones else Tone.PLAIN,
                share=run.peak_reserved_bytes / most if has_bars else None,
            )
            for cells, run in runs
        ),
    )
