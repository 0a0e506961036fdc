"""Loops that wait for a number: while nothing new comes to the card, what one line reads again and again falls off.

A fixed point is looked for until the error is small, clusters until none changes. Drawn numbers never would be: each
round draws its own. A training step, or a batch that is sent to the card, begins anew, and numbers that are only
logged do not fall.
"""

import threading
from typing import Final

import torch

from ullage.gpu.tracing.source import Line
from ullage.gpu.values.consequence import may_decide
from ullage.gpu.values.content import BlockContent, Certainty, Operand, OperatorCall, WrittenView
from ullage.gpu.values.draw import level_of
from ullage.gpu.values.reads import ReadKind

_PATIENCE: Final = 2
"""So many times a line reads what was drawn."""
_NEAR: Final = 1e-3
"""A number that has fallen to this share is equal to what it was before."""
_COMPARISONS: Final = frozenset(("aten::gt", "aten::ge", "aten::lt", "aten::le"))
_THROUGH: Final = frozenset(("aten::any", "aten::all", "aten::logical_not", "aten::_to_copy", "aten::bitwise_not"))
_EQUALITIES: Final = {
    ("aten::all", "aten::eq"): True,
    ("aten::all", "aten::isclose"): True,
    ("aten::all", "aten::le"): True,
    ("aten::any", "aten::ne"): False,
}
"""Ways to ask whether tensors are equal, with what says so."""
_DEEPEST: Final = 5


class Waiting:
    """Counts how often each line has read in a row."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rounds: dict[Line | None, int] = {}
        self._lock = threading.Lock()

    def renew(self) -> None:
        """Begin anew: an optimizer has taken a step, or the host has sent something."""
        if self._rounds:
            self._rounds.clear()

    def rounds_of(self, line: Line | None, kind: ReadKind) -> int:
        """Count a read of drawn values that may decide, and return how many there were before."""
        if kind == ReadKind.FLOAT and line is not None and not may_decide(line.file, line.line):
            return 0
        with self._lock:
            before = self._rounds.get(line, 0)
            self._rounds[line] = before + 1
        return before

    def share_after(self, rounds: int) -> float:
        """Return what is left of a number after so many reads."""
        rate: float = level_of(self._seed).rate
        return rate ** max(rounds - _PATIENCE, 0)

    def falls(self, operand: Operand, rounds: int) -> None:
        """Make a question about drawn numbers, which was not answered yet, one about smaller numbers."""
        if rounds <= _PATIENCE:
            return
        call = operand.content.call
        for _ in range(_DEEPEST):
            if call is None:
                return
            name = call.operator._schema.name
            inner = call.arguments[0] if call.arguments else None
            if not isinstance(inner, Operand):
                return
            if name in _COMPARISONS:
                if inner.content.is_float and inner.content.certainty >= Certainty.DRAWN:
                    call.arguments = [_smaller(inner, self.share_after(rounds)), *call.arguments[1:]]
                return
            if name not in _THROUGH:
                return
            call = inner.content.call

    def is_near(self, rounds: int) -> bool:
        """Tell whether what was compared again and again no longer differs."""
        return self.share_after(rounds) <= _NEAR

    def is_equal_by_now(self, operand: Operand, rounds: int) -> bool | None:
        """Return what says that two tensors no longer differ, where that was asked again and again; else None."""
        call = operand.content.call
        if not self.is_near(rounds) or call is None:
            return None
        inner = call.arguments[0] if call.arguments else None
        if not isinstance(inner, Operand) or inner.content.call is None:
            return None
        asked = inner.content.call.operator._schema.name
        return _EQUALITIES.get((call.operator._schema.name, asked))

    def watch_steps(self) -> None:
        """Begin anew after each step of an optimizer."""
        # not with the module's beginning: torch.optim takes long to load, and not every script does
        from torch.optim.optimizer import register_optimizer_step_post_hook

        # It stays: values may be stopped by such a hook, and the others are being called then.
        register_optimizer_step_post_hook(lambda *_: self.renew())


def _smaller(operand: Operand, share: float) -> Operand:
    """Return an operand for the product of another and a number."""
    whole = operand.content
    content = BlockContent(whole.bytes, whole.dtype, whole.certainty, depth=whole.depth + 1)
    call = OperatorCall(torch.ops.aten.mul.Scalar, [operand, share], {}, is_random=False)
    # contiguous, from the storage's beginning: as the product is laid out on the host
    smaller = Operand.__new__(Operand)
    smaller.content = content
    smaller.dtype, smaller.size, smaller.offset = operand.dtype, operand.size, 0
    smaller.stride = torch.empty(operand.size, device="meta").stride()
    call.targets.append(WrittenView(content, smaller, 0))
    content.call = call
    return smaller
