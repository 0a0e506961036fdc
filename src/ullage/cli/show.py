"""Show a command's progress on standard error, and its result as text, JSON or an HTML page."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from ullage.report.report import Report

_QUIET_SECONDS: Final = 2.0  # the time after which a run without a terminal reports its progress

Answer = TypeVar("Answer")


def show(report: "Report", answer: dict[str, Any] | None, *, page: Path | None, is_whole: bool = False) -> None:
    """Print a report or its data as JSON, and write the HTML page if the user requested one.

    Args:
        report: the report.
        answer: the answer as JSON data to print in place of the report; None: print the report.
        page: the path of the page to write; None: none.
        is_whole: whether to print the details too.

    Raises:
        OSError: the page cannot be written; a partial file is removed.
    """
    try:
        _print(report, answer, is_whole=is_whole)
    except BrokenPipeError:  # the reader has closed the pipe (| head), but the page was requested
        if page is not None:
            _write(report, page)
        raise
    if page is not None:
        _write(report, page)


def _print(report: "Report", answer: dict[str, Any] | None, *, is_whole: bool) -> None:
    if answer is None:
        # Imported only here, because --help does not need it.
        from ullage.report.terminal import ReportConsole, draw

        draw(report, ReportConsole(highlight=False), is_whole=is_whole)
    else:
        from ullage.base.secrets import hidden_data

        print(json.dumps(hidden_data(answer), indent=1), flush=True)


def _write(report: "Report", page: Path) -> None:
    from ullage.base.own_files import write_whole
    from ullage.report.page.html import draw_page  # imported only here, because it loads a template engine

    write_whole(page, draw_page(report).encode(errors="replace"))
    sys.stderr.write(f"ullage: wrote {page}\n")


def with_progress(work: Callable[[Callable[[str], None]], Answer], *, live: bool = True) -> Answer:
    """Run a function and show its progress.

    A terminal shows a live line. Otherwise, lines are printed once the work takes longer.

    Args:
        work: a function that is called with the function to report progress.
        live: whether to show a live line on a terminal; not if another program writes to standard error.
    """
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    if console.is_terminal and live:
        with console.status("starting") as status:
            return work(lambda text: status.update(escape(text)))
    began = time.monotonic()

    def report(text: str) -> None:
        if time.monotonic() - began > _QUIET_SECONDS:
            sys.stderr.write(f"ullage: {text} ({time.monotonic() - began:.0f} s)\n")

    return work(report)
