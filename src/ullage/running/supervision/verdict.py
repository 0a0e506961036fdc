"""Explains why a run ran out of memory, and writes a report into the error's folder."""

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from ullage.base.errors import UllageError, UsageError
from ullage.base.own_files import OwnFolder
from ullage.explaining.analysis.card import card_to_explain, recorded_cards
from ullage.explaining.analysis.explain import Explanation, RunSummary, explain
from ullage.recorded.settings import semantics_of
from ullage.recorded.snapshot.snapshot import load_snapshot
from ullage.report.page.html import draw_page
from ullage.report.report import Report
from ullage.report.terminal import draw
from ullage.running.run_files.folder import PAGE, REPORT, OomEvidence, RunFolder, is_run, read_run, shown
from ullage.running.supervision.summary import differences_of, summary_of

_COLUMNS: Final = 100


def find_run(folder: Path) -> tuple[RunFolder, int]:
    """Return the newest run in a folder, and the number of runs. The number is 0 if the folder itself is a run.

    Raises:
        UsageError: the folder is not that of a run and contains no run.
        OSError: the folder cannot be read.
    """
    try:
        return read_run(folder), 0
    except UsageError:
        if not folder.is_dir():
            raise
        runs = []  # runs are recognised by file names, because old runs may be many and large
        for path in folder.iterdir():
            with suppress(OSError):
                if path.is_dir() and is_run(path):
                    runs.append((path.stat().st_mtime, path))
        for _, path in sorted(runs, reverse=True):
            with suppress(UsageError, OSError):
                return read_run(path), len(runs)
        raise


def fatal_evidence(run: RunFolder) -> OomEvidence | None:
    """Return the out-of-memory error that ended the run.

    If no such error ended a process, return the first out-of-memory error of the run.
    """
    ended = {process.facts.pid for process in run.processes if process.facts.state == "out of memory"}
    last = {one.pid: one for one in run.evidence if one.pid in ended}
    return min(last.values(), key=lambda one: one.time) if last else next(iter(run.evidence), None)


def explain_evidence(
    evidence: OomEvidence, *, progress: Callable[[str], None] = lambda text: None
) -> Explanation | None:
    """Explain an out-of-memory error from its memory snapshot. Return None if the snapshot is incomplete.

    Raises:
        UllageError: the snapshot cannot be read.
    """
    if evidence.snapshot is None:
        return None
    snapshot = load_snapshot(evidence.snapshot)
    device = evidence.device
    if device is None or device not in snapshot.devices:
        device = card_to_explain(recorded_cards(snapshot.devices))
    return explain(
        snapshot.devices[device],
        source=str(shown(evidence.folder)),
        semantics=_semantics_of(evidence.torch) if evidence.torch is not None else None,
        with_picture=True,
        progress=progress,
    )


def with_run(explanation: Explanation, run: RunFolder, evidence: OomEvidence, *, beside: int = 0) -> Explanation:
    """Add facts about the run to the explanation of an out-of-memory error."""
    process = next((one for one in run.processes if one.facts.pid == evidence.pid), None)
    where = f", called at {evidence.line}, in backward" if evidence.is_in_backward else f", at {evidence.line}"
    step = f"step {evidence.step}" if evidence.step is not None else "step unknown"
    remarks = (
        *([f"{process.name}, {step}{where if evidence.line else ''}"] if process is not None else []),
        *differences_of(run),
        *(f"{name}={value}" for name, value in evidence.variables.items() if "ALLOC" in name),
    )
    recorded = RunSummary(
        name=run.folder.name,
        evidence=str(evidence.folder),
        summary=tuple(summary_of(run)),
        remarks=remarks,
        beside=beside,
    )
    return replace(explanation, run=recorded)


def write_report(place: OwnFolder, report: Report) -> None:
    """Write a report as text and as HTML into a folder.

    Raises:
        OSError: the disk is full, or a file cannot be written.
    """
    text = io.StringIO()
    draw(report, Console(file=text, width=_COLUMNS, highlight=False, no_color=True), is_whole=True)
    place.write_whole(REPORT, text.getvalue().encode(errors="replace"))
    place.write_whole(PAGE, draw_page(report).encode(errors="replace"))


def _semantics_of(version: str) -> str | None:
    try:
        return semantics_of(version)
    except UllageError:
        return None
