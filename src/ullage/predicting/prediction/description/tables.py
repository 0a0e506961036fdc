"""Create the report tables with the memory peaks of runs and phases."""

from collections.abc import Iterable, Iterator
from typing import Final

from ullage.base.units import text_of_bytes
from ullage.gpu.tracing.source import Line
from ullage.predicting.prediction.data.prediction import Peaks, PhaseBand, PhaseUse, Prediction, Verdict
from ullage.predicting.prediction.phases.name import STEPS, PhaseName
from ullage.report.report import Band, Table, TableRow, Tone

TONES: Final = {Verdict.FITS: Tone.GOOD, Verdict.DOES_NOT_FIT: Tone.BAD, Verdict.UNKNOWN: Tone.UNSURE}
_VERDICTS: Final = {Verdict.FITS: "fits", Verdict.DOES_NOT_FIT: "does not fit", Verdict.UNKNOWN: "uncertain"}
_PLACE_CHARACTERS: Final = 34  # the width of the column


def phases_table(phases: list[PhaseUse], title: str = "By phase") -> Table | None:
    """Return a table with the memory peaks of each phase, or None if there are only loading and steps."""
    if all(phase.name in STEPS for phase in phases):
        return None
    most = max(phase.peak_allocated_bytes for phase in phases) or 1
    return Table(
        title=title,
        columns=("phase", "when", "allocated", "reserved", "peak at"),
        rows=tuple(
            TableRow(
                cells=(
                    phase.name,
                    _when(phase),
                    text_of_bytes(phase.peak_allocated_bytes),
                    text_of_bytes(phase.peak_reserved_bytes),
                    _place(phase),
                ),
                share=phase.peak_allocated_bytes / most,
            )
            for phase in phases
        ),
    )


def moment_of_peak(prediction: Prediction) -> str:
    """Return a text with the step or phase of the memory peak, such as "at the peak in step 3"."""
    shown = [run.phases for run in prediction.runs if run.arguments == prediction.arguments]
    phases = shown[0] if shown else prediction.phases
    at_most = [phase for phase in phases if phase.peak_allocated_bytes == prediction.peak_allocated_bytes]
    reached = [phase for phase in at_most if phase.peak_allocated_bytes > phase.before_bytes]
    if reached and not any(phase.name in STEPS for phase in at_most):
        when = f", {_when(reached[0])}" if reached[0].count == 1 else ""
        return f"at the peak in {reached[0].name}{when}"
    return f"at the peak in step {prediction.peak_step}" if prediction.peak_step else "at the peak"


def resumed_tables(prediction: Prediction) -> Iterator[Table]:
    """Return a table with the peaks of the first and the resumed run, and a table with the phases of the resumed
    run.
    """
    if not prediction.runs:
        return
    first, resumed = prediction.runs
    yield table_of_peaks(
        "Peaks of the first and of the resumed run",
        ("run",),
        [(("first",), first), (("resumed",), resumed)],
        fullest=next((run for run in prediction.runs if run.arguments == prediction.arguments), None),
        mark=" ◀ shown above",
        has_bars=True,
    )
    table = phases_table(resumed.phases, "By phase, resumed")
    if table is not None:
        yield table


def bands_of(bands: list[PhaseBand]) -> tuple[Band, ...]:
    """Return the run's phases as labels for the report's timeline."""
    return tuple(Band(label=band.name, first=band.first, last=band.last) for band in bands)


def _when(phase: PhaseUse) -> str:
    if phase.name == PhaseName.LOADING:
        return ""
    if phase.name in STEPS:
        last = phase.first_step + phase.count - 1
        return f"step {phase.first_step}" if last == phase.first_step else f"steps {phase.first_step} to {last}"
    first = f"after step {phase.first_step}" if phase.first_step else "before step 1"
    return first if phase.count == 1 else f"{phase.count} times, first {first}"


def _place(phase: PhaseUse) -> str:
    if phase.file and phase.line:
        return str(Line(phase.file, phase.line))
    if phase.before_bytes == phase.peak_allocated_bytes:
        return "allocated before"
    return "not your code"


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
    """Return a table with one row per run. Each row has the memory peaks and whether the run fits.

    Args:
        title: the table's title.
        names: the headings of the columns before the peaks.
        runs: for each row, the cells of these columns and the run.
        fullest: the run whose row is marked.
        mark: the text that marks this row.
        has_bars: whether each row has a bar for its reserved memory.
        has_tones: whether the colour of each row shows if the run fits.
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
                    _VERDICTS[run.verdict] + (mark if run is fullest else ""),
                ),
                tone=TONES[run.verdict] if has_tones else Tone.PLAIN,
                share=run.peak_reserved_bytes / most if has_bars else None,
            )
            for cells, run in runs
        ),
    )


def place_of(file: str | None, line: int | None, otherwise: str) -> str:
    """Return the file name and the line number of a source line, or `otherwise` if the line is unknown."""
    return otherwise if file is None or line is None else shortened(str(Line(file, line)))


def shortened(name: str) -> str:
    """Shorten a long path or module name at its beginning."""
    return f"…{name[1 - _PLACE_CHARACTERS :]}" if len(name) > _PLACE_CHARACTERS else name
