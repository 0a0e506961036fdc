"""A place in a source file, as short as a column of a report is wide."""

from typing import Final

from ullage.gpu.tracing.source import Line

_WIDTH: Final = 34  # characters


def place_of(file: str | None, line: int | None, otherwise: str) -> str:
    """Return a line's place; another text where there is no line."""
    return otherwise if file is None or line is None else shortened(str(Line(file, line)))


def shortened(name: str) -> str:
    """Cut a long path or name from the left, so that the line number or the innermost module stays."""
    return f"…{name[1 - _WIDTH :]}" if len(name) > _WIDTH else name
