"""Find the code blocks that contain a statement, and find out whether later code may read a variable."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from ullage.predicting.editing.edit import NotCertain

MODULE = "<module>"
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
_LOOKS_AT_ALL = frozenset({"locals", "vars", "globals", "eval", "exec", "dir"})


class Fate(Enum):
    """What a sequence of statements first does with a variable: read it, overwrite it, or neither."""

    READ = "read"
    """The statements may read the value."""
    LOST = "lost"
    """The value is lost unread: the variable is overwritten or deleted, or the function returns."""
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A statement of the user's code, given by its block and its index in the block."""

    block: list[ast.stmt]
    index: int
    parent: ast.AST
    """The function or the compound statement, such as `for` or `if`, that contains the block."""

    @property
    def statement(self) -> ast.stmt:
        """The statement itself."""
        return self.block[self.index]


def parse(source: str) -> ast.Module:
    """Return the syntax tree of a source file.

    Raises:
        NotCertain: the file is not valid source code for this version of Python.
    """
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        raise NotCertain("the file cannot be parsed") from None


def scope_of(tree: ast.Module, function: str) -> Scope:
    """Return the function with a qualified name, or the module for the name "<module>".

    Raises:
        NotCertain: the file does not contain exactly one function with this name.
    """
    if function == MODULE:
        return tree
    found = [node for name, node in _functions(tree, "") if name == function]
    if len(found) != 1:
        raise NotCertain(f"the file has no function {function}, or several")
    return found[0]


def _functions(node: ast.AST, prefix: str) -> Iterator[tuple[str, Scope]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        elif not isinstance(child, ast.expr):
            yield from _functions(child, prefix)


def levels_to(scope: Scope, line: int) -> list[BlockPlace]:
    """Return the statements that contain a line, the outermost first.

    Raises:
        NotCertain: no statement of the function itself contains the line.
    """
    levels: list[BlockPlace] = []
    parent: ast.AST = scope
    while True:
        found = next((level for level in _levels_below(parent) if holds(level.statement, line)), None)
        if found is None:
            break
        levels.append(found)
        parent = found.statement
        if isinstance(parent, _INNER):
            raise NotCertain(f"line {line} belongs to a nested function")
    if not levels:
        raise NotCertain(f"line {line} is not in the function")
    return levels


def _levels_below(parent: ast.AST) -> Iterator[BlockPlace]:
    for block in blocks_of(parent):
        for index in range(len(block)):
            yield BlockPlace(block, index, parent)


def blocks_of(parent: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the blocks of a compound statement such as `if`, or of a function or module."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list):
            yield block
    for name in ("handlers", "cases"):
        for part in getattr(parent, name, ()):
            yield part.body


def start_line(statement: ast.stmt) -> int:
    """Return the first line of a statement or of its first decorator."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def end_line(node: ast.stmt | ast.expr) -> int:
    """Return the last line of a statement or an expression."""
    return node.end_lineno or node.lineno


def spans(node: ast.stmt | ast.expr, line: int) -> bool:
    """Return whether a statement or an expression contains a line."""
    return node.lineno <= line <= end_line(node)


def holds(statement: ast.stmt, line: int) -> bool:
    """Return whether a statement or one of its decorators contains a line."""
    return start_line(statement) <= line <= end_line(statement)


def called_name(call: ast.Call) -> str:
    """Return the last part of a called function's name, such as "step" for `optimizer.step()`.

    Empty if the function has no name.
    """
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def operand(node: ast.expr) -> str:
    """Return the source code of an expression, in parentheses unless it can be an operand as it is."""
    text = ast.unparse(node)
    return text if isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"


def calls_at(tree: ast.AST, line: int, function: str) -> list[ast.Call]:
    """Return the calls of a function at a line. `function` is the last part of its name, such as "from_pretrained"."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and spans(node, line)]
    return [each for each in calls if called_name(each) == function]


def common_level(first: Sequence[BlockPlace], second: Sequence[BlockPlace]) -> tuple[int, BlockPlace, BlockPlace]:
    """Return the depth of the innermost block that contains both lines, and its statements at these lines.

    Raises:
        NotCertain: the two lines are in different branches of one statement.
    """
    depth = -1
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if one.block is not other.block:
            break
        depth = number
        if one.index != other.index:
            break
    is_deeper = len(first) > depth + 1 and len(second) > depth + 1
    if depth < 0 or (is_deeper and first[depth].index == second[depth].index):
        raise NotCertain("the lines are in different blocks")
    return depth, first[depth], second[depth]


def names_of(scope: Scope) -> set[str]:
    """Return all names that occur in the code of a function or module."""
    names = {node.id for node in ast.walk(scope) if isinstance(node, ast.Name)}
    return names | {node.arg for node in ast.walk(scope) if isinstance(node, ast.arg)}


def stored_in(node: ast.AST) -> set[str]:
    """Return the names that a syntax node assigns, except names inside nested functions."""
    names = set()
    for each in own_nodes(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            names.add(each.id)
        elif isinstance(each, ast.alias):
            names.add((each.asname or each.name).split(".")[0])
        elif isinstance(each, _NAMED) and each.name:
            names.add(each.name)
    return names


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a syntax node and all nodes below it, except the bodies of nested functions and classes."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _INNER):
            yield child
        elif isinstance(child, _COMPREHENSIONS):
            targets = {id(each) for part in child.generators for each in ast.walk(part.target)}
            yield from (each for each in own_nodes(child) if id(each) not in targets)
        else:
            yield from own_nodes(child)


def arguments_of(scope: Scope) -> set[str]:
    if isinstance(scope, ast.Module):
        return set()
    given = scope.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {each.arg for each in every if each is not None}


def is_shared(scope: Scope, name: str) -> bool:
    """Return whether other code, such as a nested function, may read a variable of a function."""
    for node in ast.walk(scope):
        if node is scope:
            continue
        if isinstance(node, ast.Global | ast.Nonlocal) and name in node.names:
            return True
        if isinstance(node, _INNER) and not _is_own(node, name) and _mentions(node, name):
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LOOKS_AT_ALL:
            return True
    return False


def _is_own(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Lambda):
        return name in {each.arg for each in [*node.args.args, *node.args.kwonlyargs, *node.args.posonlyargs]}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        declared = any(isinstance(each, ast.Global | ast.Nonlocal) and name in each.names for each in ast.walk(node))
        body: set[str] = set().union(*(stored_in(statement) for statement in node.body))
        return not declared and name in arguments_of(node) | body
    return False


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def uses(statement: ast.stmt, name: str) -> bool:
    """Return whether a statement reads or assigns a variable."""
    return _mentions(statement, name) or name in stored_in(statement)


def is_read_behind(levels: Sequence[BlockPlace], name: str, *, last: int | None = None) -> bool:
    """Return whether a variable may be read after a statement, later or in the next iteration of a loop.

    Args:
        levels: the enclosing statements of the statement, as `levels_to` returns them.
        name: the name of the variable.
        last: the index in the innermost block after which to begin, if it is not the statement's own index.
    """
    for depth in range(len(levels) - 1, -1, -1):
        level = levels[depth]
        following = level.block[(level.index if depth < len(levels) - 1 or last is None else last) + 1 :]
        fate = fate_in(following, name)
        if fate is Fate.READ:
            return True
        jumps = (ast.Break, ast.Continue)
        if fate is Fate.LOST and not any(isinstance(node, jumps) for each in following for node in own_nodes(each)):
            return False
        if isinstance(level.parent, LOOPS) and level.block is level.parent.body:
            if _is_read_in_next_turn(level.parent, name):
                return True
        elif not isinstance(level.parent, ast.If | ast.With | ast.AsyncWith | ast.Module) and depth > 0:
            other = [statement for block in blocks_of(level.parent) if block is not level.block for statement in block]
            if fate_in(other, name) is Fate.READ:  # a `finally`, an `else` or an exception handler may read it
                return True
    return False


def _is_read_in_next_turn(loop: ast.For | ast.AsyncFor | ast.While, name: str) -> bool:
    if isinstance(loop, ast.While):
        return _loads(loop.test, name) or fate_in(loop.body, name) is Fate.READ
    return name not in stored_in(loop.target) and fate_in(loop.body, name) is Fate.READ


def fate_in(statements: Sequence[ast.stmt], name: str) -> Fate:
    """Return whether the statements first read a variable, first overwrite it, or do neither."""
    for statement in statements:
        fate = _fate(statement, name)
        if fate is not Fate.OPEN:
            return fate
    return Fate.OPEN


def _fate(statement: ast.stmt, name: str) -> Fate:
    if not uses(statement, name):
        return Fate.LOST if isinstance(statement, ast.Return | ast.Raise) else Fate.OPEN
    if isinstance(statement, ast.If):
        fates = {fate_in(block, name) for block in (statement.body, statement.orelse)}
        if _loads(statement.test, name) or Fate.READ in fates:
            return Fate.READ
        return Fate.LOST if fates == {Fate.LOST} else Fate.OPEN
    if isinstance(statement, ast.With | ast.AsyncWith):
        if any(_loads(item, name) for item in statement.items):
            return Fate.READ
        if any(name in stored_in(item) for item in statement.items):
            return Fate.LOST
        return fate_in(statement.body, name)
    if isinstance(statement, ast.For | ast.AsyncFor | ast.While | ast.Try | ast.TryStar | ast.Match):
        if any(_loads(child, name) for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)):
            return Fate.READ
        blocks = list(blocks_of(statement))
        if isinstance(statement, ast.Try | ast.TryStar):  # the `else` block runs after the whole body
            blocks = [[*statement.body, *statement.orelse], *blocks[2:]]
        return Fate.READ if any(fate_in(block, name) is Fate.READ for block in blocks) else Fate.OPEN
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name) and statement.target.id == name:
        return Fate.READ
    if _loads(statement, name):
        return Fate.READ
    return Fate.LOST


def _loads(node: ast.AST, name: str) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load) for each in ast.walk(node)
    )


def free_name(scope: Scope, wanted: str) -> str:
    """Return an unused variable name: the wanted name, with a number appended if necessary."""
    taken = names_of(scope)
    number = 2
    name = wanted
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name
