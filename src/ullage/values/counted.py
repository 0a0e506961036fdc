"""Operators that read a count of their own back from the card, and give their result its size by it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from ullage.values.answers import Answers
from ullage.values.content import Certainty, OperatorCall
from ullage.values.dispatch import ONLY, run_on
from ullage.values.evaluation import EvaluationError, certainty_of
from ullage.values.notes import Notes
from ullage.values.operator_plan import OperatorPlan
from ullage.values.reads import ReadKind, Reads

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

    def run(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Run an operator that reads a count back, with the count that it has to read."""
        if self._answers.is_answering or arguments[0].layout != torch.strided:  # within another: its answer counts
            return run_on(keyset, plan, operator, arguments, keywords)
        call = self._notes.call(plan, operator, arguments, keywords)
        certainty, _ = self._notes.standing(call, plan)
        count, values = self._count(plan, call)
        certainty = Certainty.UNKNOWN if count is None else max(certainty, certainty_of(call))
        result = self._answers.answering(count or 0, keyset, plan, operator, arguments, keywords)
        self._reads.note(ReadKind.SHAPE, plan.name.partition("::")[2].strip("_"), certainty, 8)
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
        dimension = 0
        if plan.name in ("aten::unique_dim", "aten::unique_dim_consecutive"):
            dimension = int(call.arguments[1])
        return int(values[0].shape[dimension]), values

    def coalesced(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Tell a sparse tensor how many of its indices are different."""
        sparse = arguments[0]
        if self._answers.is_answering:
            return run_on(keyset, plan, operator, arguments, keywords)
        indices = sparse._indices()
        count, certainty, different = 0, Certainty.UNKNOWN, None
        try:
            operand = self._notes.operand(indices)
            value = self._notes.evaluation.value_of(operand)
            certainty = operand.content.certainty
            with torch._C._ExcludeDispatchKeyGuard(ONLY):
                different = torch.unique(value, dim=1)
                count = int(different.shape[1])
        except (EvaluationError, RuntimeError):
            pass
        result = self._answers.answering(count, keyset, plan, operator, arguments, keywords)
        self._notes.forget_parts(result)
        if different is not None and result._indices().size() == different.size() and different.numel():
            self._notes.keep(result._indices(), different, certainty)
        self._reads.note(ReadKind.SHAPE, "coalesce", certainty, 8)
        return result

    def selected(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Tell `index_select` how many elements of a sparse tensor it selects."""
        sparse, dimension, wanted = arguments
        if self._answers.is_answering or dimension >= sparse.sparse_dim():
            return run_on(keyset, plan, operator, arguments, keywords)
        count, certainty = 0, Certainty.UNKNOWN
        try:
            places, index = self._notes.operand(sparse._indices()), self._notes.operand(wanted)
            own, chosen = (self._notes.evaluation.value_of(each) for each in (places, index))
            with torch._C._ExcludeDispatchKeyGuard(ONLY):
                size = sparse.size(dimension)
                have = torch.bincount(own[dimension], minlength=size)
                count = int(have[torch.remainder(chosen, size)].sum())
            certainty = max(places.content.certainty, index.content.certainty)
        except (EvaluationError, RuntimeError, IndexError):
            pass
        result = self._answers.answering(count, keyset, plan, operator, arguments, keywords)
        self._notes.forget_parts(result)
        self._reads.note(ReadKind.SHAPE, "index_select", certainty, 8)
        return result
