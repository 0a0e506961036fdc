"""Whether a number that a line of a script reads decides something, as far as its source shows.

A loss that is written to a log decides nothing; one that is compared does. Looked at are the statement itself, and the
variables that it sets, in the innermost loop or function around it.
"""

import ast
import linecache
from collections.abc import Iterator
from functools import cache
from typing import Final

_TO_WHOLE: Final = frozenset({"int", "round", "range", "floor", "ceil", "bool"})
_BODIES: Final = (ast.For, ast.While, ast.AsyncFor, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module)
_MOST_CHARACTERS: Final = 2_000_000


@cache
def may_decide(file: str, line: int) -> bool:
    """Tell whether a number that is read at a line takes part in a comparison, a condition, an index or a size.

    False where the source cannot be read.
    """
    tree = _tree_of(file)
    if tree is None:
        return False
    return any(_decides(statement, body) for statement, body in _statements_at(tree, line))


def _decides(statement: ast.stmt, body: ast.AST) -> bool:
    if any(_has_read(part) for part in _deciding_parts(statement)):
        return True
    names = _set_by(statement) if _has_read(statement) else set()
    return bool(names) and any(not names.isdisjoint(_names_in(part)) for part in _deciding_parts(body))


@cache
def _tree_of(file: str) -> ast.Module | None:
    try:
        source = "".join(linecache.getlines(file))
        return ast.parse(source) if 0 < len(source) <= _MOST_CHARACTERS else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _statements_at(tree: ast.Module, line: int) -> list[tuple[ast.stmt, ast.AST]]:
    """Return the innermost statements that cover a line, each with the loop or function around it."""
    found: list[tuple[ast.stmt, ast.AST]] = []
    waiting: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while waiting:
        node, body = waiting.pop()
        inner = body if not isinstance(node, _BODIES) else node
        parts = [
            each
            for each in ast.iter_child_nodes(node)
            if isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case)
        ]
        covering = [each for each in parts if not isinstance(each, ast.stmt) or _covers(each, line)]
        waiting += [(each, inner) for each in covering]
        if isinstance(node, ast.stmt) and not any(isinstance(each, ast.stmt) for each in covering):
            found.append((node, body))
    return found


def _covers(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _deciding_parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what in a piece of code decides: conditions, comparisons, indices, and what becomes a whole number."""
    for part in ast.walk(node):
        match part:
            case ast.If(test=test) | ast.While(test=test) | ast.Assert(test=test) | ast.IfExp(test=test):
                yield test
            case ast.Compare():
                yield part
            case ast.Subscript(slice=index):
                yield index
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _TO_WHOLE:
                yield part


def _has_read(node: ast.AST) -> bool:
    """Tell whether a value is read from the card in a piece of code, or may be."""
    return any(
        isinstance(part, ast.Call)
        and (
            (isinstance(part.func, ast.Attribute) and part.func.attr in {"item", "tolist", "cpu", "numpy"})
            or (isinstance(part.func, ast.Name) and part.func.id in {"float", "int", "bool"})
        )
        for part in ast.walk(node)
    )


def _names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _set_by(statement: ast.stmt) -> set[str]:
    """Return the variables that a statement sets; a sum that grows is not followed."""
    if isinstance(statement, ast.Assign):
        return {
            part.id
            for target in statement.targets
            for part in ast.walk(target)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        }
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    return {part.target.id for part in ast.walk(statement) if isinstance(part, ast.NamedExpr)}
