"""Provide the values that a script or an operator reads from the emulated GPU, such as a loss."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch

from ullage.gpu.tracing.source import callers_line
from ullage.gpu.values.content import Certainty, Operand, OperatorCall
from ullage.gpu.values.dispatch import ONLY, Invocation
from ullage.gpu.values.evaluation import EvaluationError, certainty_of, on_the_host
from ullage.gpu.values.notes import Notes, is_on_card
from ullage.gpu.values.operator_plan import OperatorPlan
from ullage.gpu.values.reads import ReadKind, Reads
from ullage.gpu.values.sparse import BY_COLUMNS, BY_ROWS, COUNTED_BY_LIBRARY, computed, is_counted
from ullage.gpu.values.waiting import Waiting

SIZED_BY_READS: Final = frozenset(("aten::bincount", "aten::repeat_interleave", "aten::one_hot", "aten::histc"))
COUNTED: Final = frozenset(
    (
        *("aten::nonzero", "aten::_unique2", "aten::_unique", "aten::unique_dim", "aten::unique_consecutive"),
        *("aten::unique_dim_consecutive", "torchvision::nms"),
    )
)
"""Operators that read a count from the GPU to determine the size of their result."""


class Answers:
    """Provides the values that the script reads from the GPU, and counts the reads."""

    def __init__(self, notes: Notes, reads: Reads, waiting: Waiting, answer: Callable[[int | None], None]) -> None:
        self._notes = notes
        self._reads = reads
        self._waiting = waiting
        self._answer = answer
        self._here = threading.local()

    @property
    def is_answering(self) -> bool:
        """Whether an operator is running and ullage answers all of its GPU reads with one fixed number."""
        return bool(getattr(self._here, "answers", 0))

    def scalar(self, op: Invocation) -> Any:
        """Return the number that `item()` reads from a GPU tensor."""
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
            certainty = self._notes.evaluation.certainty_of(operand)
            if kind == ReadKind.FLOAT and rounds:
                found *= self._waiting.share_after(rounds)
        except (EvaluationError, RuntimeError, NotImplementedError):
            found, certainty = type(result)(), Certainty.UNKNOWN
        if certainty == Certainty.UNKNOWN and within in SIZED_BY_READS and tensor.dtype == torch.bool:
            found = True  # as in `checks_hold`
        self._reads.note(kind, name, certainty, tensor.dtype.itemsize)
        return found

    def _rounds(self, operand: Operand, kind: ReadKind) -> int:
        if operand.content.certainty < Certainty.DRAWN:
            return 0
        return self._waiting.rounds_of(callers_line(), kind)

    def copied_to_host(self, op: Invocation) -> Any:
        """Copy a GPU tensor to the host, with its values if they are known."""
        target, source = op.arguments[0], op.arguments[1]
        if not source.numel():  # An empty tensor has no values.
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
                certainty = self._notes.evaluation.certainty_of(operand)
            except (EvaluationError, RuntimeError):
                pass
        self._reads.note(ReadKind.of_copy(source.dtype), "copy", certainty, size)
        return result

    def equal(self, op: Invocation) -> Any:
        """Return whether two GPU tensors are equal.

        PyTorch's own comparison inside `equal` cannot be intercepted, because it does not go through the dispatcher.
        """
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
        """Run an operator. Each time the operator reads a number from the GPU, it receives `count`."""
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
        """Run an operator, and count its reads from the GPU under the operator's name."""
        here = self._here
        outer, here.within = getattr(here, "within", None), op.plan.name
        try:
            with self.checks_hold():
                result = op.run()
        finally:
            here.within = outer
        if isinstance(result, torch.Tensor) and result.is_cuda:
            self._notes.results(op, (result,))
        return result

    @contextmanager
    def checks_hold(self) -> Iterator[None]:
        """Let an operator read that a condition is true if ullage does not know the condition.

        PyTorch checks its arguments so. If a check fails, for example in `repeat_interleave`, it raises an error.
        """
        self._answer(1)
        try:
            yield
        finally:
            self._answer(None)

    # ---- operators that read a count back

    def counted(self, op: Invocation) -> Any:
        """Run an operator that reads the size of its result from the GPU. The host computes the size."""
        if (
            self.is_answering or op.arguments[0].layout != torch.strided
        ):  # inside another such operator, whose answer is used
            return op.run()
        call = self._notes.call(op)
        certainty, _ = self._notes.standing(call, op.plan)
        count, values = self._count(op.plan, call)
        certainty = Certainty.UNKNOWN if count is None else max(certainty, certainty_of(call))
        result = self.answering(count or 0, op)
        self._reads.note(ReadKind.SHAPE, op.plan.name.partition("::")[2].strip("_"), certainty, 8)
        self._keep_counted(result if isinstance(result, tuple | list) else (result,), values, certainty)
        return result

    def _keep_counted(
        self, results: Sequence[Any], values: Sequence[torch.Tensor] | None, certainty: Certainty
    ) -> None:
        # Some kernels leave out results that the script has not asked for, for example `unique` of booleans.
        written = [(place, each) for place, each in enumerate(results) if is_on_card(each) and each.numel()]
        for _, each in written:  # a kernel has written the result
            self._notes.unseen(each)
        if values is not None and all(each.size() == values[place].size() for place, each in written):
            for place, each in written:
                self._notes.keep(each, values[place], certainty)

    def _count(self, plan: OperatorPlan, call: OperatorCall) -> tuple[int | None, list[torch.Tensor] | None]:
        # Not in the call's context: a result that has a content is made by the call.
        evaluation = self._notes.evaluation
        try:
            if plan.name == "aten::nonzero":
                mask = evaluation.value_of(call.arguments[0])
                holes = evaluation.holes_in(call.arguments[0])
                if holes is not None and bool(holes.any()):
                    raise EvaluationError("the count may depend on memory that the script has not written")
                with torch._C._ExcludeDispatchKeyGuard(ONLY):
                    count = int(torch.count_nonzero(mask))
                if count * mask.dim() * 8 > evaluation.bound_of(torch.int64):  # The count does not need the indices.
                    return count, None
            values = evaluation.results_of(call)
        except (EvaluationError, RuntimeError, NotImplementedError, IndexError, ValueError):
            return None, None
        return int(values[0].shape[_dimension_of(plan, call)]), values

    def counted_of_sparse(self, op: Invocation) -> Any:
        """Run an operator on sparse tensors. The host computes the number of elements of its result."""
        if self.is_answering:
            return op.run()
        made, certainty = self._made(op.plan.name, op.arguments)
        if made is None and op.plan.name in COUNTED_BY_LIBRARY:  # The library estimates the count itself.
            result = op.run()
        else:
            result = self.answering(made._nnz() if made is not None else 0, op)
        self._notes.forget_parts(result)
        if made is not None and made.layout == result.layout and made._nnz() == result._nnz():
            self._notes.keep_sparse(result, made, certainty)
        self._reads.note(ReadKind.SHAPE, op.plan.name.partition("::")[2].strip("_"), certainty, 8)
        return result

    def converted(self, op: Invocation) -> Any:
        """Convert a sparse tensor to another layout, and compute the new indices on the host.

        A conversion from rows to columns is a special case: a kernel computes the indices without an operator
        (`_flatten_indices` in ATen/native/sparse/FlattenIndicesCommon.h).
        """
        result = op.run()
        source = op.arguments[0]
        if source.layout not in BY_ROWS + BY_COLUMNS:
            return result
        held = self._notes.held_sparse(source)
        self._notes.forget_parts(result)
        with suppress(RuntimeError, NotImplementedError):
            if held is not None:
                with on_the_host():
                    made = op.operator(held[0], *op.arguments[1:], **op.keywords)
                self._notes.keep_sparse(result, made, held[1])
        return result

    def _made(self, name: str, arguments: Sequence[Any]) -> tuple[torch.Tensor | None, Certainty]:
        own: list[Any] = []
        best = Certainty.KNOWN
        for each in arguments:
            if not isinstance(each, torch.Tensor):
                own.append(each)
                continue
            held = self._notes.held_sparse(each) if each.layout != torch.strided else self._notes.held(each)
            if held is None or held[1] == Certainty.UNKNOWN:
                return None, Certainty.UNKNOWN
            own.append(held[0])
            best = max(best, held[1])
        try:
            return computed(name, own), best
        except (RuntimeError, NotImplementedError, IndexError):
            return None, Certainty.UNKNOWN


def read_by(op: Invocation) -> ReadKind | None:
    """Return the kind of value that an operator reads from the GPU, or None if it reads none."""
    name, arguments = op.operator._schema.name, op.arguments
    if name == "aten::_local_scalar_dense":
        return ReadKind.of_number(arguments[0].dtype)
    if name == "aten::equal":
        return ReadKind.BRANCH
    if name in COUNTED or is_counted(name, arguments):
        return ReadKind.SHAPE
    is_to_host = name == "aten::copy_" and not arguments[0].is_cuda and getattr(arguments[1], "is_cuda", False)
    return ReadKind.of_copy(arguments[1].dtype) if is_to_host else None


def _dimension_of(plan: OperatorPlan, call: OperatorCall) -> int:
    if plan.name in ("aten::unique_dim", "aten::unique_dim_consecutive"):
        return int(call.arguments[1])
    if plan.name == "aten::unique_consecutive":
        dimension = call.arguments[3] if len(call.arguments) > 3 else call.keywords.get("dim")
        return int(dimension or 0)
    return 0
