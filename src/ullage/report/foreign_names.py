"""Makes names in a report harmless. Names of files, functions and processes come from other people."""

from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from ullage.base.secrets import SourceCode
from ullage.base.visible import visible, visible_text
from ullage.report.report import Report

# The fields of a report that may have several lines. A line break in any other field comes from a name.
_SEVERAL_LINES: Final = frozenset(("sentence", "text", "items", "remark"))


def without_control_characters(thing: Any, *, in_report: bool = False, is_line: bool = False) -> Any:
    """Replace all control characters in a report or in other data.

    They could change the state of the terminal, and a line break could imitate a line of the report.

    Args:
        thing: a text, a tuple or a dataclass. Other objects are returned unchanged.
        in_report: whether the object is part of a report.
        is_line: whether a text has one line.
    """
    if isinstance(thing, str):
        shown = visible(thing) if is_line else visible_text(thing)
        return SourceCode(shown) if isinstance(thing, SourceCode) else shown
    if isinstance(thing, tuple):
        return tuple(without_control_characters(one, in_report=in_report, is_line=is_line) for one in thing)
    if is_dataclass(thing) and not isinstance(thing, type):
        in_report = in_report or isinstance(thing, Report)
        return replace(
            thing,
            **{
                field.name: without_control_characters(
                    getattr(thing, field.name),
                    in_report=in_report,
                    is_line=in_report and field.name not in _SEVERAL_LINES,
                )
                for field in fields(thing)
            },
        )
    return thing
