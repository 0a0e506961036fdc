"""Find the names of the variables and attributes in the user's code that refer to an object."""

import ast
import linecache
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from ullage.gpu.tracing.source import is_users
from ullage.predicting.changes.training.facts import CodePlace, NamedObject
from ullage.predicting.editing.edit import NotCertain
from ullage.predicting.editing.scope import (
    MODULE,
    BlockPlace,
    Scope,
    arguments_of,
    levels_to,
    parse,
    scope_of,
    stored_in,
)
from ullage.training.ownership.root import variables_of
from ullage.training.ownership.safe_inspection import instance_dict

_LIBRARY_WRAPPER = "module"


def place_of(frame: FrameType) -> CodePlace:
    """Return the line that a stack frame is executing."""
    return CodePlace(file=frame.f_code.co_filename, line=frame.f_lineno, function=frame.f_code.co_qualname)


def users_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield the stack frames of the user's code, beginning with `frame` and followed by its callers."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def users_frame() -> FrameType | None:
    """Return the innermost stack frame that runs the user's code."""
    return next(users_frames(sys._getframe(1)), None)


def names_of(frame: FrameType | None, wanted: Any, wrapper: Any = None) -> list[NamedObject]:
    """Return the expressions in the user's running functions that refer to an object, such as "self.model".

    Args:
        frame: the innermost frame to search.
        wanted: the object.
        wrapper: a wrapper that holds the object as its attribute `module`; None if the object is not wrapped.
    """
    found = []
    for each in users_frames(frame):
        name = _name_in(each, wanted)
        if name is None and wrapper is not None and (outer := _name_in(each, wrapper)) is not None:
            name = f"{outer}.{_LIBRARY_WRAPPER}"
        if name is not None:
            place = place_of(each)
            found.append(NamedObject(name=name, place=place, assigned=assigned_at(place, name)))
    return found


def _name_in(frame: FrameType, wanted: Any) -> str | None:
    variables = variables_of(frame)
    for name, value in variables.items():
        if value is wanted:
            return name
    for name in ("self", *(name for name in variables if name != "self")):
        inside = instance_dict(variables.get(name)) or {}
        children = inside.get("_modules")  # submodules, which are not attributes in the instance's dictionary
        for attribute, value in [*inside.items(), *(children.items() if isinstance(children, dict) else ())]:
            if value is wanted and attribute.isidentifier():
                return f"{name}.{attribute}"
    known = frame.f_globals
    return next((name for name in frame.f_code.co_names if name in known and known[name] is wanted), None)


def assigned_at(use: CodePlace, expression: str) -> CodePlace | None:
    """Return the line that assigned an expression before another line uses it, or None if uncertain."""
    lines = linecache.getlines(use.file)
    try:
        tree = parse("".join(lines))
        name, _, rest = expression.partition(".")
        if name == "self":
            return _attribute_assigned(tree, use, rest.partition(".")[0])
        scope = scope_of(tree, use.function)
        level = _last_before(scope, name, use.line)
        if level is None and use.function != MODULE and name not in arguments_of(scope) | stored_in(scope):
            return _only_global(tree, use, name)
    except NotCertain:
        return None
    return None if level is None else CodePlace(file=use.file, line=level.statement.lineno, function=use.function)


def _last_before(scope: Scope, name: str, line: int) -> BlockPlace | None:
    found = None
    for level in levels_to(scope, line):
        for index in range(level.index):
            if name in _given_by(level.block[index]):
                found = BlockPlace(level.block, index, level.parent)
        if isinstance(level.statement, ast.For | ast.AsyncFor) and name in stored_in(level.statement.target):
            found = None
    return found


def _given_by(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    return stored_in(statement)


def _only_global(tree: ast.Module, use: CodePlace, name: str) -> CodePlace | None:
    found = [statement for statement in tree.body if name in _given_by(statement)]
    if len(found) != 1:
        return None
    return CodePlace(file=use.file, line=found[0].lineno, function=MODULE)


def _attribute_assigned(tree: ast.Module, use: CodePlace, attribute: str) -> CodePlace | None:
    kind = use.function.rpartition(".")[0]
    found = []
    for function, statement in _methods_statements(tree, kind):
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets: Sequence[ast.expr] = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            if any(_is_own(target, attribute) for each in targets for target in ast.walk(each)):
                found.append(CodePlace(file=use.file, line=statement.lineno, function=function))
    return found[0] if len(found) == 1 else None


def _is_own(node: ast.AST, attribute: str) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node) == f"self.{attribute}"


def _methods_statements(tree: ast.Module, kind: str) -> Iterator[tuple[str, ast.stmt]]:
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind]
    for method in (each for one in classes for each in one.body):
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((f"{kind}.{method.name}", node) for node in ast.walk(method) if isinstance(node, ast.stmt))
