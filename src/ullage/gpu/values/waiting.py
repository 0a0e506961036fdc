"""Shrink random numbers that the same line reads repeatedly, so that loops that wait for a small number end.

Examples are fixed-point iterations that run until an error is small, and clustering that runs until nothing changes.
The count of reads starts again after a training step, or when a batch is sent to the GPU. Numbers that are only logged
do not shrink.
"""

import threading
from typing import Final

import torch

from ullage.gpu.tracing.source import Line
from ullage.gpu.values.consequence import may_decide
from ullage.gpu.values.content import BlockContent, Certainty, Operand, OperatorCall, WrittenView
from ullage.gpu.values.draw import level_of
from ullage.gpu.values.faults import Faults
from ullage.gpu.values.reads import ReadKind

# One line may read random values this often before they begin to shrink.
_PATIENCE: Final = 2
# A number that has shrunk to this fraction counts as equal to its previous value.
_NEAR: Final = 1e-3
_COMPARISONS: Final = frozenset(("aten::gt", "aten::ge", "aten::lt", "aten::le"))
_THROUGH: Final = frozenset(("aten::any", "aten::all", "aten::logical_not", "aten::_to_copy", "aten::bitwise_not"))
# Two operators together test for equality; the boolean is the result that means "equal".
_EQUALITIES: Final = {
    ("aten::all", "aten::eq"): True,
    ("aten::all", "aten::isclose"): True,
    ("aten::all", "aten::le"): True,
    ("aten::any", "aten::ne"): False,
}
_DEEPEST: Final = 5


class Waiting:
    """Counts how often each source line reads random values in a row."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rounds: dict[Line | None, int] = {}
        self._lock = threading.Lock()

    # called after an optimizer step, and when the host sends data to the GPU
    def renew(self) -> None:
        """Set the number of reads of every source line to zero."""
        if self._rounds:
            self._rounds.clear()

    def rounds_of(self, line: Line | None, kind: ReadKind) -> int:
        """Count that a source line reads a random GPU value, and return the number of the line's earlier reads."""
        if kind == ReadKind.FLOAT and line is not None and not may_decide(line.file, line.line):
            return 0
        with self._lock:
            before = self._rounds.get(line, 0)
            self._rounds[line] = before + 1
        return before

    def share_after(self, rounds: int) -> float:
        """Return the factor by which ullage multiplies a random number that a source line has read `rounds` times.

        The factor falls with each read, so that a loop that waits for a small number ends.
        """
        rate: float = level_of(self._seed).rate
        return rate ** max(rounds - _PATIENCE, 0)

    def falls(self, operand: Operand, rounds: int) -> None:
        """Make random numbers in a comparison smaller, so that a loop that waits for a small number ends."""
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
        """Return whether ullage now reports two random values as equal, so that a loop that waits for this ends."""
        return self.share_after(rounds) <= _NEAR

    def is_equal_by_now(self, operand: Operand, rounds: int) -> bool | None:
        """Return the result that means "equal", so that a loop that waits until two tensors are equal ends.

        Return None after the first few comparisons, and for operators that do not compare for equality.
        """
        call = operand.content.call
        if not self.is_near(rounds) or call is None:
            return None
        inner = call.arguments[0] if call.arguments else None
        if not isinstance(inner, Operand) or inner.content.call is None:
            return None
        asked = inner.content.call.operator._schema.name
        return _EQUALITIES.get((call.operator._schema.name, asked))

    def watch_steps(self, faults: Faults) -> None:
        """Set the number of reads of every source line to zero after each optimizer step.

        Args:
            faults: the collection that stores ullage's own errors.
        """
        # Imported here, because torch.optim takes long to load and not every script needs it.
        from torch.optim.optimizer import register_optimizer_step_post_hook

        # The hook is never removed: such a hook may itself stop the values, while PyTorch calls the other hooks.
        register_optimizer_step_post_hook(faults.keeping("an optimizer step", lambda *_: self.renew()))


def _smaller(operand: Operand, share: float) -> Operand:
    whole = operand.content
    content = BlockContent(whole.bytes, whole.dtype, whole.certainty, depth=whole.depth + 1)
    call = OperatorCall(torch.ops.aten.mul.Scalar, [operand, share], {}, is_random=False)
    # contiguous from the beginning of the storage, which is the layout of the product on the host
    smaller = Operand.__new__(Operand)
    smaller.content = content
    smaller.dtype, smaller.size, smaller.offset = operand.dtype, operand.size, 0
    smaller.stride = torch.empty(operand.size, device="meta").stride()
    call.targets.append(WrittenView(content, smaller, 0))
    content.call = call
    return smaller
