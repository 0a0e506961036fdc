"""Print the result of a function such as `ullage.predict` as the command line does, or write it as an HTML page."""

from pathlib import Path

from rich.console import Console

from ullage.base.errors import UsageError
from ullage.base.own_files import write_whole
from ullage.base.public import public
from ullage.report.answer import Answer
from ullage.report.report import Report
from ullage.report.terminal import draw


def report_of(answer: object) -> Report:
    """Return the report of a function's result, such as that of a `Prediction`.

    Raises:
        UsageError: the object is not the result of a function of this package.
    """
    if not isinstance(answer, Answer):
        raise UsageError(
            f"a {type(answer).__name__} is not an answer; expected the result of a function such as ullage.predict"
        )
    return answer.report_of()


@public
def show(answer: object, *, all: bool = False) -> None:  # noqa: A002  the name of the command's option
    """Print an answer as its command does.

    Args:
        answer: a Prediction, Fit, LayoutFit, Advice, Explanation, FleetExplanation, Tuning, Difference or Diagnosis.
        all: whether to print every row.

    Returns:
        None.

    Raises:
        UsageError: the object is not such an answer.

    Example:
        >>> ullage.show(ullage.explain("oom.pickle"))
    """
    draw(report_of(answer), Console(highlight=False), is_whole=all)


@public
def write_page(answer: object, page: str | Path) -> None:
    """Write an answer as an HTML page. The page needs no network.

    Args:
        answer: a Prediction, Fit, LayoutFit, Advice, Explanation, FleetExplanation, Tuning, Difference or Diagnosis.
        page: the path of the file.

    Returns:
        None.

    Raises:
        UsageError: the object is not such an answer.
        OSError: the file cannot be written; a partial file is removed.

    Example:
        >>> ullage.write_page(ullage.explain("oom.pickle", picture=True), "oom.html")
    """
    from ullage.report.page.html import draw_page  # imported only here, because it loads a template engine

    write_whole(Path(page), draw_page(report_of(answer)).encode(errors="replace"))
