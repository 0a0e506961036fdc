"""Adds an explanation to an out-of-memory error that the guard cannot handle."""

import io
from typing import Final

import torch
from rich.console import Console

from ullage.base.errors import UllageError
from ullage.base.own_files import nameless_file
from ullage.explaining.analysis.describe import describe
from ullage.explaining.analysis.explain import Explanation, explain
from ullage.explaining.analysis.text.describe import describe_text
from ullage.explaining.analysis.text.explain import explain_text
from ullage.recorded.snapshot.snapshot import load_snapshot
from ullage.report.report import Report
from ullage.report.terminal import draw
from ullage.training.guard.memory.room import Room

_WIDTH: Final = 110


def add_oom_report(error: BaseException, room: Room) -> None:
    """Add a note to an error that explains why memory ran out.

    The explanation uses PyTorch's memory history if it is recorded, otherwise only the error message.
    """
    report = _of_recording(room)
    if report is None:
        try:
            report = describe_text(explain_text(str(error), source="this run"))
        except UllageError:
            return
    page = io.StringIO()
    draw(report, Console(file=page, width=_WIDTH, no_color=True, legacy_windows=False))
    error.add_note("\n".join(line.rstrip() for line in page.getvalue().splitlines()))


def _of_recording(room: Room) -> Report | None:
    if not any(device.type == "cuda" for device in room.devices):
        return None
    try:
        with nameless_file() as path:
            torch.cuda.memory._dump_snapshot(str(path))
            histories = load_snapshot(path).devices
    except (UllageError, OSError, RuntimeError):
        return None  # the error text can still be explained
    recorded = [history for history in histories.values() if len(history)]
    if not recorded:
        return None
    explanation: Explanation = explain(max(recorded, key=len), source="this run")
    return describe(explanation) if "requested_bytes" in explanation.evidence else None
