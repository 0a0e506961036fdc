"""Insert `del` statements for variables of a loop, right after their last use."""

# A value that a variable has at the end of an iteration stays alive until the next iteration assigns the variable, and
# so adds to the memory of that iteration.

import ast
from collections.abc import Mapping, Sequence

from ullage.predicting.editing.edit import InsertAfter, NotCertain
from ullage.predicting.editing.scope import (
    LOOPS,
    BlockPlace,
    Fate,
    Scope,
    blocks_of,
    fate_in,
    is_read_behind,
    is_shared,
    levels_to,
    parse,
    scope_of,
    stored_in,
    uses,
)

_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def released(source: str, *, file: str, function: str, lines: Mapping[str, int]) -> tuple[InsertAfter, ...]:
    """Return the edits that delete variables after their last use in a loop.

    Args:
        source: the text of the file.
        file: the path of the file.
        function: the qualified name of the function that has the variables; "<module>" for module-level code.
        lines: for each variable name, a line of the loop that assigns it.

    Raises:
        NotCertain: a variable may be read again, or is not a variable of that function.
    """
    scope = scope_of(parse(source), function)
    found: dict[tuple[int, bool], list[str]] = {}
    for name, line in lines.items():
        found.setdefault(_place_of(scope, name, line), []).append(name)
    return tuple(
        InsertAfter(file=file, line=line, text=_text(names, is_sure=is_sure))
        for (line, is_sure), names in found.items()
    )


# If a variable may have no value, `del` could fail, so None is assigned to it instead.
def _text(names: Sequence[str], *, is_sure: bool) -> str:
    return f"del {', '.join(names)}" if is_sure else f"{' = '.join(names)} = None"


def _place_of(scope: Scope, name: str, line: int) -> tuple[int, bool]:
    if not name.isidentifier():
        raise NotCertain(f"{name} is not a variable")
    if is_shared(scope, name):
        raise NotCertain(f"other functions read {name}")
    levels = levels_to(scope, line)
    loops = [depth for depth, level in enumerate(levels[:-1]) if isinstance(level.statement, LOOPS)]
    if not loops:
        raise NotCertain(f"line {line} is not in a loop")
    if name not in stored_in(levels[-1].statement):
        raise NotCertain(f"line {line} does not assign {name}")
    why = ""
    for depth in reversed(loops):
        try:
            return _place_in(levels[: depth + 1], name)
        except NotCertain as error:
            why = why or str(error)
    raise NotCertain(why)


def _place_in(levels: Sequence[BlockPlace], name: str) -> tuple[int, bool]:
    loop = levels[-1].statement
    assert isinstance(loop, LOOPS)
    if name in stored_in(loop.target if not isinstance(loop, ast.While) else loop.test):
        raise NotCertain(f"{name} is the object that the loop iterates over")
    way, block, last = list(levels), loop.body, _last_use(loop.body, name)
    while (inner := _block_of_all_uses(block, name, last)) is not None:  # descend as deep as all uses of the name allow
        way.append(BlockPlace(block, last, way[-1].statement))
        block, last = inner, _last_use(inner, name)
    statement = block[last]
    if isinstance(statement, _LEAVING):
        raise NotCertain(f"the function or the loop ends with the last use of {name}")
    if isinstance(statement, ast.Delete):
        raise NotCertain(f"{name} is deleted already")
    if is_read_behind([*way, BlockPlace(block, last, way[-1].statement)], name):
        raise NotCertain(f"{name} may be read again after its last use in the loop")
    is_sure = _is_sure(block[: last + 1], name)
    return statement.lineno, is_sure


def _last_use(block: Sequence[ast.stmt], name: str) -> int:
    return max(index for index, statement in enumerate(block) if uses(statement, name))


def _block_of_all_uses(block: Sequence[ast.stmt], name: str, last: int) -> list[ast.stmt] | None:
    statement = block[last]
    if isinstance(statement, LOOPS) or sum(uses(each, name) for each in block) > 1:
        return None
    inner = [each for each in blocks_of(statement) if any(uses(one, name) for one in each)]
    count = sum(isinstance(node, ast.Name) and node.id == name for node in ast.walk(statement))
    within = sum(
        isinstance(node, ast.Name) and node.id == name for each in inner for one in each for node in ast.walk(one)
    )
    return inner[0] if len(inner) == 1 and count == within else None


def _is_sure(statements: Sequence[ast.stmt], name: str) -> bool:
    for index, statement in enumerate(statements):
        if name in stored_in(statement) and _assigns(statement, name):
            return not any(isinstance(node, ast.Delete) for each in statements[index:] for node in ast.walk(each))
    return False


def _assigns(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.If):
        blocks = (statement.body, statement.orelse)
        return all(_is_sure(block, name) or (fate_in(block, name) is Fate.LOST and _leaves(block)) for block in blocks)
    if isinstance(statement, ast.With | ast.AsyncWith):
        return _is_sure(statement.body, name) or any(name in stored_in(item) for item in statement.items)
    return not isinstance(statement, ast.For | ast.AsyncFor | ast.While | ast.Try | ast.TryStar | ast.Match)


def _leaves(block: Sequence[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], _LEAVING)
