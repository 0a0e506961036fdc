"""Output of an answer: a report on the terminal or JSON, and a page in addition."""

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from ullage._output import write_whole
from ullage.report.report import Report
from ullage.report.terminal import draw


def show(report: Report, answer: dict[str, Any] | None, *, page: Path | None, is_whole: bool = False) -> None:
    """Print a report, short or whole, or its answer as JSON, and write the page that was asked for.

    Raises:
        OSError: the page cannot be written; nothing of it is left.
    """
    if answer is None:
        draw(report, _Console(highlight=False), is_whole=is_whole)
    else:
        print(json.dumps(answer, indent=1), flush=True)
    if page is not None:
        from ullage.report.page import draw_page  # its template engine is not for those who do not ask

        write_whole(page, draw_page(report).encode(errors="replace"))
        sys.stderr.write(f"ullage: wrote {page}\n")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Let the command line end the process as other programs do; rich's exit code 1 would mean "does not fit"."""
        raise BrokenPipeError
