"""An answer that prints as its report: in a terminal, in a notebook, and in one line."""

import importlib
import io
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from ullage.report.report import Report

_NOTEBOOK_WIDTH: Final = 100  # characters
_HTML: Final = """<pre style="font-family: Menlo, 'DejaVu Sans Mono', monospace; line-height: 1.2">{code}</pre>"""


class Answer:
    """Base of what the questions return.

    `print(answer)` prints what the command prints, a notebook shows the same with colours, and `repr` is one line.
    """

    __slots__ = ()
    described_in: ClassVar[str]
    """The module whose `describe` arranges the answer into a report; it is loaded when it is needed."""

    def __str__(self) -> str:
        """Return the report as text, as wide as the terminal."""
        from ullage.report.terminal import ReportConsole, draw

        text = io.StringIO()
        for each in self._shown():
            draw(each.report_of(), ReportConsole(file=text, highlight=False))
        return text.getvalue()

    def __repr__(self) -> str:
        """Return the verdict and its subject in one line."""
        report = self.report_of()
        return f"<ullage.{type(self).__name__}: {report.headline}, {report.subject}>"

    def _repr_html_(self) -> str:
        """Return the report for a notebook."""
        from ullage.report.terminal import ReportConsole, draw

        console = ReportConsole(
            file=io.StringIO(), record=True, width=_NOTEBOOK_WIDTH, highlight=False, force_jupyter=False
        )
        for each in self._shown():
            draw(each.report_of(), console)
        return console.export_html(inline_styles=True, code_format=_HTML)

    def _shown(self) -> Sequence["Answer"]:
        """Return the answers that are shown below each other."""
        return (self,)

    def report_of(self) -> Report:
        """Arrange the answer into a report."""
        describe: Any = importlib.import_module(self.described_in).describe
        report: Report = describe(self)
        return report
