"""Find the source line that assigns a variable or adds a value to a container."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from ullage.base.foreign_files import read_regular
from ullage.gpu.tracing.source import Line, is_users

_MOST_BYTES: Final = 1 << 24
_ADDS: Final = frozenset(
    ("append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put", "push", "set_postfix")
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A statement of the user's code that assigns a variable or adds a value to a container."""

    file: str
    first: int
    """The line number at which the statement begins."""
    last: int
    name: str
    function: str
    """The name of the function that contains the local variable. It is empty for a global variable."""
    adds: bool
    """Whether the statement adds a value to a container, as `losses.append(loss)` does."""
    is_none: bool
    """Whether the statement assigns None to the variable."""


def assignment_of(
    names: Sequence[str], *, stack: Sequence[Line], file: str, function: str, into: bool
) -> Assignment | None:
    """Return a statement that assigns one of the given variables, or None.

    Args:
        names: names of attributes or variables; the first name with a statement is used.
        stack: the call stack of an allocation that the variable holds; a statement on this stack is preferred.
        file: the source file that has the variable.
        function: the function that has the variable; empty for a variable of the module.
        into: whether the variable is a container into which values are put.
    """
    frames = {(line.file, line.line) for line in stack}
    files = dict.fromkeys([line.file for line in stack if is_users(line.file)] + [file] * bool(file))
    for name in names:
        found = [one for each in files for one in _assignments(each) if one.name == name and not one.is_none]
        for is_it in (
            lambda one: any((one.file, line) in frames for line in range(one.first, one.last + 1)),
            lambda one: one.file == file and one.adds == into and one.function == function,
            lambda one: one.adds == into,
            lambda one: True,
        ):
            if chosen := [one for one in found if is_it(one)]:
                return chosen[-1]
    return None


@cache
def _assignments(file: str) -> tuple[Assignment, ...]:
    try:
        tree = ast.parse(read_regular(Path(file), most_bytes=_MOST_BYTES))
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(sorted(_in(tree, "", file), key=lambda one: one.first))


def _in(node: ast.AST, function: str, file: str) -> Iterator[Assignment]:
    for child in ast.iter_child_nodes(node):
        inner = function
        if isinstance(child, _Function):
            before = f"{function}." if isinstance(node, ast.ClassDef | ast.Module) else f"{function}.<locals>."
            inner = (before if function else "") + child.name
        for target, adds in _targets(child):
            for name in _names(target):
                first, last = _lines(child, target)
                yield Assignment(
                    file=file,
                    first=first,
                    last=last,
                    name=name,
                    function=function,
                    adds=adds,
                    is_none=_is_none(child),
                )
        yield from _in(child, inner, file)


def _lines(node: ast.AST, target: ast.AST) -> tuple[int, int]:
    of = target if isinstance(node, ast.For | ast.AsyncFor | ast.withitem | ast.comprehension) else node
    first: int = getattr(of, "lineno", 0)
    return first, getattr(of, "end_lineno", None) or first


def _targets(node: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield target, isinstance(target, ast.Subscript)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, isinstance(node, ast.AugAssign)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, False
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDS:
        yield node.func.value, True


def _is_none(node: ast.AST) -> bool:
    value = getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else node
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _names(target: ast.AST) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, ast.Attribute):
        yield target.attr
    elif isinstance(target, ast.Subscript | ast.Starred):
        yield from _names(target.value)
    elif isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from _names(each)
