"""An answer for people: as the command prints it, or as a page."""

from pathlib import Path

from rich.console import Console

from ullage.base.errors import UsageError
from ullage.base.own_files import write_whole
from ullage.base.public import public
from ullage.report.answer import Answer
from ullage.report.report import Report
from ullage.report.terminal import draw


def report_of(answer: object) -> Report:
    """Arrange an answer into a report.

    Raises:
        UsageError: it is not an answer of this package's.
    """
    if not isinstance(answer, Answer):
        raise UsageError(
            f"a {type(answer).__name__} is not an answer; expected what a function such as ullage.predict returns"
        )
    return answer.report_of()


@public
def show(answer: object, *, all: bool = False) -> None:  # noqa: A002  the name of the command's option
    """Print an answer as its command does.

    Args:
        answer: a Prediction, Fit, LayoutFit, Advice, Explanation, FleetExplanation, Tuning, Difference or Diagnosis.
        all: print every row.

    Raises:
        UsageError: it is none of these.
    """
    draw(report_of(answer), Console(highlight=False), is_whole=all)


@public
def write_page(answer: object, page: str | Path) -> None:
    """Write an answer as a page for a browser, which needs no network.

    Args:
        answer: a Prediction, Fit, LayoutFit, Advice, Explanation, FleetExplanation, Tuning, Difference or Diagnosis.
        page: the path of the file.

    Raises:
        UsageError: it is none of these.
        OSError: the file cannot be written; nothing of it is left.
    """
    from ullage.report.page.html import draw_page  # its template engine is not for those who do not ask

    write_whole(Path(page), draw_page(report_of(answer)).encode(errors="replace"))
