"""What is taken for granted: that numbers are finite, unless a script has put infinities among them."""

import math
from typing import Any, Final

import torch

from ullage.gpu.values.content import BlockContent, Operand, OperatorCall
from ullage.gpu.values.dispatch import ONLY
from ullage.gpu.values.evaluation import operands_in

_FAR_BACK: Final = 12


def assumed_answer(call: OperatorCall) -> list[Any] | None:
    """Return what fills a question whether numbers are finite, as arguments of `full`; None for any other question."""
    name = call.operator._schema.name
    arguments = call.arguments
    operand = arguments[0] if arguments else None
    if not isinstance(operand, Operand) or not operand.content.is_float:
        return None
    answer: bool | None = None
    if name in ("aten::isnan", "aten::isinf", "aten::isfinite"):
        answer = name == "aten::isfinite"
    elif name in ("aten::eq", "aten::ne") and len(arguments) > 1:
        other = arguments[1]
        if operand.is_same_as(other):  # only what is not a number differs from itself
            answer = name == "aten::eq"
        elif isinstance(other, float) and other in (float("inf"), float("-inf")):
            answer = name == "aten::ne"
    elif name in ("aten::lt", "aten::le") and len(arguments) > 1 and arguments[1] == float("inf"):
        answer = True
    # infinities are looked for last: it takes long
    return None if answer is None or _has_infinity(operand.content) else [list(operand.size), answer]


def _has_infinity(content: BlockContent, depth: int = _FAR_BACK) -> bool:
    """Tell whether a script has put infinities among numbers, as far back as the operations are known."""
    call = content.call
    if content.value is not None:
        with torch._C._ExcludeDispatchKeyGuard(ONLY):
            numbers = torch.empty(0, dtype=content.dtype).set_(content.value)
            return bool(torch.isinf(numbers).any())
    if call is None or depth == 0:
        return False
    if any(isinstance(each, float) and math.isinf(each) for each in (*call.arguments, *call.keywords.values())):
        return True
    return any(_has_infinity(each.content, depth - 1) for each in operands_in(call) if each.content.is_float)
