"""The phases of a run as parts of a report."""

from ullage._units import text_of_bytes
from ullage.prediction.phase_name import STEPS, PhaseName
from ullage.prediction.prediction import PhaseUse
from ullage.report.report import Table, TableRow
from ullage.tracing.source import Line


def phases_table(phases: list[PhaseUse], title: str = "By phase") -> Table | None:
    """Return the peaks of each phase; None if a run had only loading and steps, of which the report tells anyway."""
    if all(phase.name in STEPS for phase in phases):
        return None
    most = max(phase.peak_allocated_bytes for phase in phases) or 1
    return Table(
        title=title,
        columns=("phase", "when", "allocated", "reserved", "set at"),
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
        return "what was there before"
    return "no line of yours"
