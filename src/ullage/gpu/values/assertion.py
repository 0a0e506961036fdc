"""Find the result with which a condition that a script only checks does not raise an error.

Random numbers that replace unknown ones do not have the properties of the real numbers, for example that the corners of
a box are in order. A script that runs on a real GPU passes its own checks.
"""

import ast
from functools import cache
from typing import Final

from ullage.gpu.values.consequence import statements_at

_TO_HOST: Final = frozenset({"item", "tolist", "cpu", "numpy", "int", "float", "bool"})


@cache
def passing_truth(file: str, line: int) -> bool | None:
    """Return the truth value of tensors with which the check at a source line passes.

    A check is an `assert`, or an `if` whose body ends with `raise`. If several conditions are combined, all get the
    same value, which is correct for `and`, `or` and `not`.

    Returns:
        The truth value. None: the line is not a check, or the value of a tensor may differ from that of the condition.
    """
    found = {_of_statement(statement) for statement in statements_at(file, line)}
    return found.pop() if len(found) == 1 else None


def _of_statement(statement: ast.stmt) -> bool | None:
    match statement:
        case ast.Assert(test=test):
            return _of_condition(test, wanted=True)
        case ast.If(test=test, body=[*_, ast.Raise()]):
            return _of_condition(test, wanted=False)
    return None


def _of_condition(test: ast.expr, *, wanted: bool) -> bool | None:
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _of_condition(operand, wanted=not wanted)
        case ast.BoolOp(values=values):
            found = {_of_condition(value, wanted=wanted) for value in values}
            return found.pop() if len(found) == 1 else None
        case ast.Compare() if any(_reads(part) for part in ast.walk(test)):
            return None  # the read number is compared, for example with False
    return wanted


def _reads(part: ast.AST) -> bool:
    match part:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in _TO_HOST
    return False
