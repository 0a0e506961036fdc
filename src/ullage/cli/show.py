"""Output of an answer: a report on the terminal or JSON, and a page in addition."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ullage.report.report import Report


def show(report: "Report", answer: dict[str, Any] | None, *, page: Path | None, is_whole: bool = False) -> None:
    """Print a report, short or whole, or its answer as JSON, and write the page that was asked for.

    Raises:
        OSError: the page cannot be written; nothing of it is left.
    """
    try:
        _print(report, answer, is_whole=is_whole)
    except BrokenPipeError:  # nobody reads the rest of what is printed (| head), and the page was asked for
        if page is not None:
            _write(report, page)
        raise
    if page is not None:
        _write(report, page)


def _print(report: "Report", answer: dict[str, Any] | None, *, is_whole: bool) -> None:
    if answer is None:
        # Here, because --help is for those who draw nothing yet.
        from ullage.cli.console import ReportConsole
        from ullage.report.terminal import draw

        draw(report, ReportConsole(highlight=False), is_whole=is_whole)
    else:
        from ullage.base.secrets import hidden_data

        print(json.dumps(hidden_data(answer), indent=1), flush=True)


def _write(report: "Report", page: Path) -> None:
    from ullage.base.own_files import write_whole
    from ullage.report.page import draw_page  # its template engine is not for those who do not ask

    write_whole(page, draw_page(report).encode(errors="replace"))
    sys.stderr.write(f"ullage: wrote {page}\n")
