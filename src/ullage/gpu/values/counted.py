"""Operators that read a count of their own back from the card, and give their result its size by it."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import torch

from ullage.gpu.values.answers import Answers
from ullage.gpu.values.content import Certainty, OperatorCall
from ullage.gpu.values.dispatch import ONLY, Invocation
from ullage.gpu.values.evaluation import EvaluationError, certainty_of, on_the_host
from ullage.gpu.values.notes import Notes
from ullage.gpu.values.operator_plan import OperatorPlan
from ullage.gpu.values.reads import ReadKind, Reads
from ullage.gpu.values.sparse import BY_COLUMNS, BY_ROWS, COUNTED_BY_LIBRARY, computed

COUNTED: Final = frozenset(
    (
        *("aten::nonzero", "aten::_unique2", "aten::_unique", "aten::unique_dim", "aten::unique_consecutive"),
        *("aten::unique_dim_consecutive", "torchvision::nms"),
    )
)
"""Operators that read a count of their own back from the card, and give their result its size by it."""


class CountedOperators:
    """Runs them with the count that they have to read."""

    def __init__(self, notes: Notes, reads: Reads, answers: Answers) -> None:
        self._notes = notes
        self._reads = reads
        self._answers = answers

    def run(self, op: Invocation) -> Any:
        """Run an operator that reads a count back, with the count that it has to read."""
        if self._answers.is_answering or op.arguments[0].layout != torch.strided:  # within another: its answer counts
            return op.run()
        call = self._notes.call(op)
        certainty, _ = self._notes.standing(call, op.plan)
        count, values = self._count(op.plan, call)
        certainty = Certainty.UNKNOWN if count is None else max(certainty, certainty_of(call))
        result = self._answers.answering(count or 0, op)
        self._reads.note(ReadKind.SHAPE, op.plan.name.partition("::")[2].strip("_"), certainty, 8)
        results = result if isinstance(result, tuple | list) else (result,)
        for each in results:  # a kernel has written it
            if each.is_cuda and each.numel():
                self._notes.unseen(each)
        if values is not None and all(
            each.size() == value.size() for each, value in zip(results, values, strict=True) if each.numel()
        ):
            for each, value in zip(results, values, strict=True):
                if each.is_cuda and each.numel():
                    self._notes.keep(each, value, certainty)
        return result

    def _count(self, plan: OperatorPlan, call: OperatorCall) -> tuple[int | None, list[torch.Tensor] | None]:
        """Return the count that an operator reads back, and its results on the host; None where they cannot be had."""
        # not in its context: a result with a content is what the call makes
        evaluation = self._notes.evaluation
        try:
            if plan.name == "aten::nonzero":
                mask = evaluation.value_of(call.arguments[0])
                with torch._C._ExcludeDispatchKeyGuard(ONLY):
                    count = int(torch.count_nonzero(mask))
                if count * mask.dim() * 8 > evaluation.bound_of(torch.int64):  # the count is known without them
                    return count, None
            values = evaluation.results_of(call)
        except (EvaluationError, RuntimeError, NotImplementedError, IndexError, ValueError):
            return None, None
        return int(values[0].shape[_dimension_of(plan, call)]), values

    def of_sparse(self, op: Invocation) -> Any:
        """Tell an operator on sparse tensors how many elements its result has: it follows from where theirs are."""
        if self._answers.is_answering:
            return op.run()
        made, certainty = self._made(op.plan.name, op.arguments)
        if made is None and op.plan.name in COUNTED_BY_LIBRARY:  # it counts by a guess of its own
            result = op.run()
        else:
            result = self._answers.answering(made._nnz() if made is not None else 0, op)
        self._notes.forget_parts(result)
        if made is not None and made.layout == result.layout and made._nnz() == result._nnz():
            self._notes.keep_sparse(result, made, certainty)
        self._reads.note(ReadKind.SHAPE, op.plan.name.partition("::")[2].strip("_"), certainty, 8)
        return result

    def converted(self, op: Invocation) -> Any:
        """Run a conversion to another layout. From rows to columns, indices go through a kernel that nobody sees
        (`_flatten_indices` in ATen/native/sparse/FlattenIndicesCommon.h): they are worked out on the host.
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
        """Return an operator's result on the host, and how well the places of its elements are known."""
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


def _dimension_of(plan: OperatorPlan, call: OperatorCall) -> int:
    """Return the dimension of an operator's first result that has the size which it counts."""
    if plan.name in ("aten::unique_dim", "aten::unique_dim_consecutive"):
        return int(call.arguments[1])
    if plan.name == "aten::unique_consecutive":
        dimension = call.arguments[3] if len(call.arguments) > 3 else call.keywords.get("dim")
        return int(dimension or 0)
    return 0
