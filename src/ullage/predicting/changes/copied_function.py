"""Copy a function or class from ullage's source code into the user's script."""

import ast
import importlib.util
from collections.abc import Sequence
from typing import Final

from ullage.predicting.changes.source import source_of
from ullage.predicting.editing.edit import AddImport, InsertBefore, NotCertain, SourceEdit
from ullage.predicting.editing.scope import parse

_MARKS: Final = ("  # type:", "  # noqa")


def text_of_function(module: str) -> str:
    """Return the source code of the only function or class of a module, without remarks for ullage's own checks."""
    spec = importlib.util.find_spec(module)
    text = source_of(spec.origin or "") if spec is not None else ""
    [node] = [each for each in ast.parse(text).body if isinstance(each, ast.FunctionDef | ast.ClassDef)]
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    lines = text.splitlines()[first - 1 : node.end_lineno]
    return "\n".join(_without_marks(line) for line in lines)


def _without_marks(line: str) -> str:
    for mark in _MARKS:
        line = line.partition(mark)[0]
    return line


def copied_into(file: str, text: str, imports: Sequence[str]) -> list[SourceEdit]:
    """Return the edits that put a function right after the imports of a file, and that import what it uses.

    Raises:
        NotCertain: the file contains only imports, or cannot be read.
    """
    place = InsertBefore(file=file, line=_first_behind_imports(file), text=f"{text}\n\n")
    return [place, *(AddImport(file=file, text=each) for each in imports)]


def _first_behind_imports(file: str) -> int:
    for statement in parse(source_of(file)).body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_text and not isinstance(statement, ast.Import | ast.ImportFrom):
            return statement.lineno
    raise NotCertain("the file contains only imports")
