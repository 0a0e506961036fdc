"""Find out whether a number that a script reads from the GPU can change what the script does.

A loss that is only logged changes nothing, but a loss that is compared does. In the script's source, a number is
followed through variables, attributes and return values. Call arguments are not followed, because most of them are
logged. A function that its file does not call may return a number to another file, so its return value may decide
something.
"""

import ast
import linecache
from collections.abc import Iterator
from functools import cache
from typing import Final

_TO_WHOLE: Final = frozenset({"int", "round", "range", "floor", "ceil", "bool"})
_OWNER: Final = "_ullage_owner"
_ADD: Final = frozenset({"append", "extend", "add", "appendleft", "setdefault"})
# The results of these functions do not depend on the values of tensors.
_WITHOUT_VALUES: Final = frozenset({"len", "isinstance", "hasattr", "print"})
_MOST_CHARACTERS: Final = 2_000_000
_MOST_PASSES: Final = 8


@cache
def may_decide(file: str, line: int) -> bool:
    """Return whether a number that a source line reads from the GPU may change what the script does.

    It may do so in a comparison, a condition, an index or a size. The result is False if the source cannot be read.
    """
    flow = _flow_of(file)
    if flow is None:
        return False
    return any(flow.decides(statement) for statement in _statements_at(flow.tree, line))


def statements_at(file: str, line: int) -> list[ast.stmt]:
    """Return the innermost statements of a source line. The list is empty if the source cannot be read."""
    flow = _flow_of(file)
    return [] if flow is None else _statements_at(flow.tree, line)


class _Flow:
    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self._given: list[tuple[set[str], set[str]]] = []
        self._deciding: set[str] = set()
        self._mentioned: set[str] = set()
        _resolve(tree)
        for part in ast.walk(tree):
            if targets := _set_by(part):
                self._given.append((_names_in(_value_of(part)), targets))
            if isinstance(part, ast.Name | ast.Attribute):
                self._mentioned.add(f"{part.id if isinstance(part, ast.Name) else part.attr}()")
        for part in _deciding_parts(tree):
            self._deciding |= _names_in(part)

    def decides(self, statement: ast.stmt) -> bool:
        if any(_has_read(part) for part in _deciding_parts(statement)):
            return True
        if not _has_read(statement):
            return False
        names = {name for part in ast.walk(statement) for name in _set_by(part)}
        for _ in range(_MOST_PASSES):
            further = {name for sources, targets in self._given if sources & names for name in targets}
            if further <= names:
                break
            names |= further
        returned = {name for name in names if name.endswith("()")}
        return bool(names & self._deciding) or not returned <= self._mentioned


@cache
def _flow_of(file: str) -> _Flow | None:
    try:
        source = "".join(linecache.getlines(file))
        return _Flow(ast.parse(source)) if 0 < len(source) <= _MOST_CHARACTERS else None
    except (SyntaxError, ValueError, RecursionError):
        return None


def _statements_at(tree: ast.Module, line: int) -> list[ast.stmt]:
    found: list[ast.stmt] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        parts = [
            each
            for each in ast.iter_child_nodes(node)
            if isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case)
        ]
        covering = [each for each in parts if not isinstance(each, ast.stmt) or _covers(each, line)]
        waiting += covering
        is_innermost = not any(isinstance(each, ast.stmt) for each in covering)
        if isinstance(node, ast.stmt) and (is_innermost or line <= _end_of_head(node)):
            found.append(node)
    return found


def _end_of_head(statement: ast.stmt) -> int:
    head = getattr(statement, "test", None) or getattr(statement, "iter", None) or getattr(statement, "subject", None)
    return (head.end_lineno or head.lineno) if isinstance(head, ast.expr) else 0


def _covers(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _deciding_parts(node: ast.AST) -> Iterator[ast.AST]:
    for part in ast.walk(node):
        match part:
            case ast.If(test=test) | ast.While(test=test) | ast.Assert(test=test) | ast.IfExp(test=test):
                yield test
            case ast.Match(subject=subject):
                yield subject
            case ast.comprehension(ifs=conditions):
                yield from conditions
            case ast.Compare():
                yield part
            case ast.Subscript(slice=index):
                yield index
            case ast.Call(func=ast.Name(id="round"), args=[_, _]):  # rounding to decimals
                continue
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in _TO_WHOLE:
                yield part


def _has_read(node: ast.AST) -> bool:
    return any(
        isinstance(part, ast.Call)
        and (
            (isinstance(part.func, ast.Attribute) and part.func.attr in {"item", "tolist", "cpu", "numpy"})
            or (isinstance(part.func, ast.Name) and part.func.id in {"float", "int", "bool"})
        )
        for part in ast.walk(node)
    )


def _names_in(node: ast.AST | None) -> set[str]:
    found: set[str] = set()
    waiting = [] if node is None else [node]
    while waiting:
        part = waiting.pop()
        match part:
            case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
                continue
            case ast.Call(func=ast.Name(id=name)) if name in _WITHOUT_VALUES:
                continue
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                found.add(f"{name}()")
            case ast.Name():
                found.add(_variable(part))
            case ast.Attribute(attr=name):
                found.add(f".{name}")
        waiting += ast.iter_child_nodes(part)
    return found


def _variable(node: ast.Name) -> str:
    return f"{node.id} of {getattr(node, _OWNER, 0)}"


def _resolve(tree: ast.Module) -> None:
    waiting: list[tuple[ast.AST, list[tuple[int, set[str]]], str]] = [(tree, [], "")]
    while waiting:
        node, around, function = waiting.pop()
        if isinstance(node, ast.Name):
            setattr(node, _OWNER, next((line for line, own in around if node.id in own), 0))
        elif isinstance(node, ast.Return):
            setattr(node, _OWNER, function)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
            around = [(node.lineno, _own_variables(node)), *around]
        waiting += [(each, around, function) for each in ast.iter_child_nodes(node)]


def _own_variables(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    own: set[str] = set()
    others: set[str] = set()
    for part in ast.walk(function):
        match part:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                others |= set(names)
    return own - others


def _value_of(node: ast.AST) -> ast.AST | None:
    match node:
        case ast.Assign(value=value) | ast.AugAssign(value=value) | ast.AnnAssign(value=value):
            return value
        case ast.NamedExpr(value=value) | ast.Return(value=value):
            return value
        case ast.Call(args=[value, *_]):
            return value
    return None


def _set_by(node: ast.AST) -> set[str]:
    targets: list[ast.AST] = []
    match node:
        case ast.Assign(targets=several):
            targets = list(several)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
            targets = [target]
        case ast.Call(func=ast.Attribute(attr=name, value=target), args=[_, *_]) if name in _ADD:
            targets = [target]
        case ast.Return():
            return {f"{getattr(node, _OWNER, '')}()"}
    found: set[str] = set()
    while targets:
        match targets.pop():
            case ast.Name() as variable:
                found.add(_variable(variable))
            case ast.Attribute(attr=name):
                found.add(f".{name}")
            case ast.Subscript(value=value) | ast.Starred(value=value):
                targets.append(value)
            case ast.Tuple(elts=several) | ast.List(elts=several):
                targets += several
    return found
