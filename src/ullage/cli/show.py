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
    if answer is None:
        # Here, because --help is for those who draw nothing yet.
        from ullage.cli.console import ReportConsole
        from ullage.report.terminal import draw

        draw(report, ReportConsole(highlight=False), is_whole=is_whole)
    else:
        print(json.dumps(answer, indent=1), flush=True)
    if page is not None:
        from ullage._output import write_whole
        from ullage.report.page import draw_page  # its template engine is not for those who do not ask

        write_whole(page, draw_page(report).encode(errors="replace"))
        sys.stderr.write(f"ullage: wrote {page}\n")
