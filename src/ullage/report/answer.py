"""The base class of results that functions such as `ullage.predict` return."""

import importlib
import io
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from ullage.report.report import Report

_NOTEBOOK_WIDTH: Final = 100  # characters
_HTML: Final = """<pre style="font-family: Menlo, 'DejaVu Sans Mono', monospace; line-height: 1.2">{code}</pre>"""


class Answer:
    """The base class of the results of functions such as `ullage.predict`.

    `print(answer)` prints what the command prints. A notebook shows the same with colours. `repr` is one line.
    """

    __slots__ = ()
    described_in: ClassVar[str]
    """The module whose function `describe` makes a report of the result."""

    def __str__(self) -> str:
        from ullage.report.terminal import ReportConsole, draw

        text = io.StringIO()
        for each in self._shown():
            draw(each.report_of(), ReportConsole(file=text, highlight=False))
        return text.getvalue()

    def __repr__(self) -> str:
        report = self.report_of()
        return f"<ullage.{type(self).__name__}: {report.headline}, {report.subject}>"

    def _repr_html_(self) -> str:
        from ullage.report.terminal import ReportConsole, draw

        console = ReportConsole(
            file=io.StringIO(), record=True, width=_NOTEBOOK_WIDTH, highlight=False, force_jupyter=False
        )
        for each in self._shown():
            draw(each.report_of(), console)
        return console.export_html(inline_styles=True, code_format=_HTML)

    def _shown(self) -> Sequence["Answer"]:
        return (self,)

    def report_of(self) -> Report:
        """Return the report of a result."""
        describe: Any = importlib.import_module(self.described_in).describe
        report: Report = describe(self)
        return report
