"""What a script, or an operator within, reads back from the card, answered: numbers, copies to the host, equality."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import torch

from ullage.gpu.tracing.source import callers_line
from ullage.gpu.values.content import Certainty, Operand
from ullage.gpu.values.dispatch import ONLY, Invocation
from ullage.gpu.values.evaluation import EvaluationError, certainty_of
from ullage.gpu.values.notes import Notes
from ullage.gpu.values.reads import ReadKind, Reads
from ullage.gpu.values.waiting import Waiting

SIZED_BY_READS: Final = frozenset(("aten::bincount", "aten::repeat_interleave", "aten::one_hot", "aten::histc"))


class Answers:
    """Answers reads, and counts them."""

    def __init__(self, notes: Notes, reads: Reads, waiting: Waiting, answer: Callable[[int | None], None]) -> None:
        self._notes = notes
        self._reads = reads
        self._waiting = waiting
        self._answer = answer
        self._here = threading.local()

    @property
    def is_answering(self) -> bool:
        """Whether an operator runs whose reads are answered with its count."""
        return bool(getattr(self._here, "answers", 0))

    def scalar(self, op: Invocation) -> Any:
        """Answer `item()`, and what decides by one number."""
        tensor = op.arguments[0]
        if self.is_answering:
            return op.run()
        within: str | None = getattr(self._here, "within", None)
        with self._reads.answered():
            result = op.run()
        kind = ReadKind.SHAPE if within in SIZED_BY_READS else ReadKind.of_number(tensor.dtype)
        name = within or "item"
        found: Any
        try:
            operand = self._notes.operand(tensor)
            if kind != ReadKind.SHAPE and (truth := self._reads.truth_for(tensor.dtype, operand.content)) is not None:
                return truth
            rounds = self._rounds(operand, kind)
            if kind == ReadKind.BRANCH and rounds:
                if (ended := self._waiting.is_equal_by_now(operand, rounds)) is not None:
                    self._reads.note(kind, name, Certainty.DRAWN, tensor.dtype.itemsize)
                    return ended
                self._waiting.falls(operand, rounds)
            value = self._notes.evaluation.value_of(operand)
            found = value.item()
            certainty = operand.content.certainty
            if kind == ReadKind.FLOAT and rounds:
                found *= self._waiting.share_after(rounds)
        except (EvaluationError, RuntimeError, NotImplementedError):
            found, certainty = result, Certainty.UNKNOWN
        self._reads.note(kind, name, certainty, tensor.dtype.itemsize)
        return found

    def _rounds(self, operand: Operand, kind: ReadKind) -> int:
        """Return how often the line that reads has read what was drawn before, while nothing new came to the card."""
        if operand.content.certainty < Certainty.DRAWN:
            return 0
        return self._waiting.rounds_of(callers_line(), kind)

    def copied_to_host(self, op: Invocation) -> Any:
        """Copy to the host, with what the card's tensor holds."""
        target, source = op.arguments[0], op.arguments[1]
        if not source.numel():  # there is nothing to know
            with self._reads.answered():
                return op.run()
        operand: Any = None
        with suppress(RuntimeError, NotImplementedError):
            operand = self._notes.operand(source)
        with self._reads.answered():
            result = op.run()
        size = source.numel() * source.dtype.itemsize
        certainty = Certainty.UNKNOWN if size else Certainty.KNOWN
        if size and isinstance(operand, Operand) and size <= self._notes.evaluation.bound_of(source.dtype):
            try:
                value = self._notes.evaluation.value_of(operand)
                with torch._C._ExcludeDispatchKeyGuard(ONLY):
                    target.copy_(value)
                    if source.numel() == 1 and operand.content.is_float:
                        target.mul_(self._waiting.share_after(self._rounds(operand, ReadKind.FLOAT)))
                certainty = operand.content.certainty
            except (EvaluationError, RuntimeError):
                pass
        self._reads.note(ReadKind.of_copy(source.dtype), "copy", certainty, size)
        return result

    def equal(self, op: Invocation) -> Any:
        """Tell whether two tensors are equal; within, PyTorch compares without its dispatcher."""
        certainty, is_equal = Certainty.UNKNOWN, False
        try:
            call = self._notes.call(op)
            certainty, _ = self._notes.standing(call, op.plan)
            is_equal = bool(self._notes.evaluation.results_of(call)[0])
            certainty = max(certainty, certainty_of(call))
            if certainty >= Certainty.DRAWN and not is_equal:
                rounds = self._waiting.rounds_of(callers_line(), ReadKind.BRANCH)
                is_equal = self._waiting.is_near(rounds)
        except (EvaluationError, RuntimeError, NotImplementedError):
            certainty = Certainty.UNKNOWN
        result = self.answering(int(is_equal), op)
        self._reads.note(ReadKind.BRANCH, "equal", certainty, 1)
        return result

    def answering(self, count: int, op: Invocation) -> Any:
        """Run an operator whose reads are all answered with a count."""
        here = self._here
        here.answers = getattr(here, "answers", 0) + 1
        self._answer(count)
        try:
            with self._reads.answered():
                return op.run()
        finally:
            self._answer(None)
            here.answers -= 1

    def within(self, op: Invocation) -> Any:
        """Run an operator whose own reads are seen one by one, and name it for them."""
        here = self._here
        outer, here.within = getattr(here, "within", None), op.plan.name
        try:
            result = op.run()
        finally:
            here.within = outer
        if isinstance(result, torch.Tensor) and result.is_cuda:
            self._notes.results(op, (result,))
        return result
