"""What operators write on the card is noted, not computed; what they read of it is answered."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import torch

from ullage.tracing.source import callers_line
from ullage.values.collective import note_collective
from ullage.values.content import (
    BlockContent,
    BlockContents,
    Certainty,
    Operand,
    OperatorCall,
    TensorView,
    WrittenView,
    columns_of,
    extended,
)
from ullage.values.dispatch import ONLY, PYTHON, Watch, run_on
from ullage.values.evaluation import Evaluation, EvaluationError, certainty_of
from ullage.values.operator_plan import OperatorPlan
from ullage.values.reads import ReadKind, Reads
from ullage.values.waiting import Waiting

_FAR_BACK: Final = 12
_SEVERAL: Final = frozenset((tuple, list))
_DEEPEST: Final = 48
"""So many operations are written down one behind the other; then the value is worked out, or drawn if asked for."""
_DRAWN_BYTES: Final = 256 << 10
"""Drawn values are worked out then, too, if they are few, so that what bounds them (a box within its picture) holds."""

_BATCH: Final = 2
"""So many numbers sent by the host are something new to work on."""

_COUNTED: Final = frozenset(
    (
        *("aten::nonzero", "aten::_unique2", "aten::_unique", "aten::unique_dim", "aten::unique_consecutive"),
        *("aten::unique_dim_consecutive", "torchvision::nms"),
    )
)
"""Operators that read a count of their own back from the card, and give their result its size by it."""
_OVERWRITES: Final = frozenset(
    (
        *("aten::zero_", "aten::fill_", "aten::copy_", "aten::normal_", "aten::uniform_", "aten::random_"),
        *("aten::bernoulli_", "aten::exponential_", "aten::cauchy_", "aten::geometric_", "aten::log_normal_"),
    )
)
"""Operators whose written argument is not read."""
_WRITES_BY_INDEX: Final = frozenset(
    (
        *("aten::scatter_", "aten::index_copy_", "aten::index_fill_", "aten::masked_fill_", "aten::masked_scatter_"),
        *("aten::_cummax_helper", "aten::_cummin_helper"),
    )
)
"""Operators that put what is given to them into memory that may be new."""
_KEEPS_PARTS: Final = ("aten::_to_sparse", "aten::_sparse", "aten::sparse_", "aten::_coalesced", "aten::clone")
"""Operators whose sparse results have parts that were given, or made by operators that are seen."""
_WRITES_UNSAID: Final = {
    "aten::cudnn_batch_norm": (3, 4),
    "aten::native_batch_norm": (3, 4),
    "aten::batch_norm_gather_stats": (3, 4),
    "aten::batch_norm_gather_stats_with_counts": (3, 4),
    "aten::batch_norm_update_stats": (1, 2),
}
"""Operators that write arguments (a module's running statistics) of which their schema does not say so."""
_SIZED_BY_READS: Final = frozenset(("aten::bincount", "aten::repeat_interleave", "aten::one_hot", "aten::histc"))


class Interception(Watch):
    """Sees what operators write on the card and read of it."""

    def __init__(
        self,
        evaluation: Evaluation,
        reads: Reads,
        answer: Callable[[int | None], None],
        take_sent: Callable[[int, int, int], bool],
    ) -> None:
        super().__init__(everything=False)
        self._evaluation = evaluation
        self._reads = reads
        self._answer = answer
        self._take_sent = take_sent
        self.contents = BlockContents()
        """The contents of the card's memory."""
        self._plans: dict[Any, OperatorPlan] = {}
        self._here = threading.local()
        self.waiting = Waiting(evaluation.seed)
        self.is_recording_a_graph = False
        """Whether a CUDA graph is being captured: what is written then is written again at each replay."""
        self._captured: list[tuple[tuple[int, int], torch.dtype]] = []

    # ---- one operator

    def see(self, keyset: Any, operator: Any, *arguments: Any, **keywords: Any) -> Any:
        plan = self._plans.get(operator)
        if plan is None:
            plan = self._plans[operator] = OperatorPlan(operator)
        if self.has_ended or plan.is_composite or keyset.has(PYTHON):
            return run_on(keyset, plan, operator, arguments, keywords)
        name = plan.name
        if name == "aten::_local_scalar_dense":
            return self._scalar(keyset, plan, operator, arguments)
        if plan.written:
            return self._written(keyset, plan, operator, arguments, keywords)
        if name == "aten::lift_fresh":
            return self._made_of_a_list(keyset, plan, operator, arguments)
        if name in _COUNTED and arguments[0].is_cuda and arguments[0].layout == torch.strided:
            return self._counted(keyset, plan, operator, arguments, keywords)
        if name == "aten::_coalesce":
            return self._coalesced(keyset, plan, operator, arguments, keywords)
        if name == "aten::equal" and arguments[0].is_cuda:
            return self._equal(keyset, plan, operator, arguments)
        if name in _SIZED_BY_READS:
            return self._within(keyset, plan, operator, arguments, keywords)
        result = run_on(keyset, plan, operator, arguments, keywords)
        if name in _WRITES_UNSAID:
            for place in _WRITES_UNSAID[name]:
                if isinstance(arguments[place], torch.Tensor) and arguments[place].is_cuda:
                    self.note_unseen(arguments[place])
            return result
        kind = result.__class__
        if kind is torch.Tensor:
            if result.is_cuda:
                if result.layout == torch.strided:
                    self._note_results(plan, operator, arguments, keywords, (result,))
                elif not name.startswith(_KEEPS_PARTS):
                    self._forget_parts(result)
        elif kind in _SEVERAL and any(each.__class__ is torch.Tensor and each.is_cuda for each in result):
            self._note_results(plan, operator, arguments, keywords, result)
        if plan.is_collective:
            note_collective(self.contents, plan.name, arguments, self._held, self._keep)
        return result

    def _note_results(
        self, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], results: Any
    ) -> OperatorCall | None:
        """Write down how the results came about."""
        try:
            call = self._call(plan, operator, arguments, keywords)
            certainty, depth = self._standing(call, plan)
            sources = {id(operand.content) for operand in _operands(call)}
            for place, result in enumerate(results):
                if result.__class__ is not torch.Tensor or not result.is_cuda or result.layout != torch.strided:
                    continue
                block = self.contents.block_of(result)
                there = self.contents.get(block)
                if there is not None and id(there) in sources:  # an argument was returned
                    continue
                self._put(block, result, call, certainty, depth, place)
        except (RuntimeError, NotImplementedError):  # tensors without a storage of their own: sparse, nested
            return None
        return call

    def _forget_parts(self, sparse: torch.Tensor) -> None:
        """Know nothing of the parts of a sparse result: kernels that nobody sees have written them."""
        parts: tuple[torch.Tensor, ...]
        if sparse.layout == torch.sparse_coo:
            parts = (sparse._indices(), sparse._values())
        elif sparse.layout in (torch.sparse_csr, torch.sparse_bsr):
            parts = (sparse.crow_indices(), sparse.col_indices(), sparse.values())
        elif sparse.layout in (torch.sparse_csc, torch.sparse_bsc):
            parts = (sparse.ccol_indices(), sparse.row_indices(), sparse.values())
        else:
            return
        for part in parts:
            self.contents.put(self.contents.block_of(part), _unknown(self.contents.block_of(part)[1], part.dtype))

    def _put(
        self,
        block: tuple[int, int],
        tensor: torch.Tensor,
        call: OperatorCall,
        certainty: Certainty,
        depth: int,
        place: int | str,
        base: BlockContent | None = None,
        *,
        base_counts: bool = True,
        is_sent: bool = False,
    ) -> None:
        """Say that a call makes what a block holds from now on."""
        evaluation = self._evaluation
        size = block[1] if base is None else max(block[1], base.bytes)
        dtype = tensor.dtype
        content = BlockContent(size, dtype, certainty, depth=depth, is_sent=is_sent)
        is_large = size > evaluation.bound_of(dtype)
        if self.is_recording_a_graph:
            self._captured.append((block, dtype))
        if self.is_recording_a_graph or (is_large and not content.is_float):
            content.certainty = Certainty.DRAWN if content.is_float else Certainty.UNKNOWN
            self.contents.put(block, content)
            return
        if is_large:
            content.certainty = max(certainty, Certainty.DRAWN)
        content.call = call
        call.targets.append(WrittenView(content, TensorView(tensor), place, base, base_counts=base_counts))
        self.contents.put(block, content)
        if depth >= _DEEPEST:
            # what a backward pass makes bounds nothing that is drawn later
            is_wanted = size <= _DRAWN_BYTES and torch._C._current_graph_task_id() == -1
            if (content.certainty < Certainty.DRAWN or is_wanted) and evaluation.has_room(size):
                evaluation.bytes_of(content)
            else:
                content.call = None
                content.depth = 0

    # ---- arguments

    def _operand(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            if argument.is_cuda:
                if _is_opaque(argument):
                    return Operand(_unknown(0, argument.dtype), torch.empty(0, dtype=argument.dtype, device="meta"))
                contents = self.contents
                block = contents.block_of(argument)
                content = contents.get(block) if block[0] else BlockContent(0, argument.dtype, Certainty.KNOWN)
                if content is None:
                    content = _unwritten(contents.whole_bytes(block), argument)
                    contents.put(block, content)
                return Operand(content, argument)
            return self._host_argument(argument)
        if isinstance(argument, list | tuple):
            return [self._operand(each) for each in argument]
        return argument

    def _host_argument(self, argument: torch.Tensor) -> Any:
        """Keep what a tensor on the host holds now, as the script may write it later."""
        dtype = argument.dtype
        size = argument.numel() * dtype.itemsize
        evaluation = self._evaluation
        is_small = size <= evaluation.bound_of(dtype) and (size <= 64 or evaluation.has_room(size))
        if not is_small or argument.layout != torch.strided or argument.device.type != "cpu":
            unknown = BlockContent(size, dtype, Certainty.DRAWN if dtype.is_floating_point else Certainty.UNKNOWN)
            return Operand(unknown, torch.empty(argument.size(), dtype=dtype, device="meta"))
        copy = argument.detach().clone(memory_format=torch.contiguous_format)
        if size <= 64:
            return copy
        content = BlockContent(size, dtype, Certainty.KNOWN)
        evaluation.keep(content, copy.untyped_storage())
        return Operand(content, copy)

    def _call(
        self, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> OperatorCall:
        """Write an operation down."""
        return OperatorCall(
            plan.for_host(operator, arguments),
            self._operands(arguments),
            self._operand_values(keywords),
            is_random=plan.is_random,
        )

    def _operands(self, arguments: Sequence[Any]) -> list[Any]:
        return [self._operand(each) if isinstance(each, torch.Tensor | list | tuple) else each for each in arguments]

    def _operand_values(self, keywords: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self._operand(each) for name, each in keywords.items()}

    def _standing(self, call: OperatorCall, plan: OperatorPlan) -> tuple[Certainty, int]:
        """Return how well a call's results are known, and how many operations lead to them."""
        certainty = Certainty.DRAWN if plan.is_random else Certainty.KNOWN
        depth = 0
        for operand in _operands(call):
            content = operand.content
            certainty = max(certainty, content.certainty)
            depth = max(depth, content.depth)
        if certainty == Certainty.DRAWN and (assumed := _assumed(call)) is not None:
            call.operator, call.arguments, call.keywords = _FILL, assumed, {}
            certainty, depth = Certainty.ASSUMED, 0
        return certainty, depth + 1

    # ---- what is written in place

    def _written(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        first = plan.written[0]
        target = arguments[int(first)] if first.isdigit() and int(first) < len(arguments) else keywords.get(first)
        if plan.has_lists_only:
            return self._optimizers(keyset, plan, operator, arguments, keywords)
        if isinstance(target, list):
            target = target[0] if target else None
        if not isinstance(target, torch.Tensor) or (target.is_cuda and _is_opaque(target)):
            return run_on(keyset, plan, operator, arguments, keywords)
        if not target.is_cuda:
            if plan.name == "aten::copy_" and isinstance(arguments[1], torch.Tensor) and arguments[1].is_cuda:
                return self._copied_to_host(keyset, plan, operator, arguments, keywords)
            return run_on(keyset, plan, operator, arguments, keywords)
        if plan.name == "aten::copy_" and _is_sent(arguments[1]):
            self.waiting.renew()
        call = self._call(plan, operator, arguments, keywords)
        result = run_on(keyset, plan, operator, arguments, keywords)
        with suppress(RuntimeError, NotImplementedError):
            self._note_written(plan, call, arguments, keywords)
        returned = result if isinstance(result, tuple | list) else (result,)
        fresh = [
            (place, each)
            for place, each in enumerate(returned)
            if isinstance(each, torch.Tensor) and each.is_cuda and not _is_among(each, plan, arguments, keywords)
        ]
        for place, each in fresh:
            certainty, depth = self._standing(call, plan)
            self._put(self.contents.block_of(each), each, call, certainty, depth, place)
        return result

    def _note_written(
        self, plan: OperatorPlan, call: OperatorCall, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> None:
        certainty = Certainty.DRAWN if plan.is_random else Certainty.KNOWN
        depth = 0
        overwrites = plan.name in _OVERWRITES or not plan.written[0].isdigit()
        written_places: dict[str, tuple[torch.Tensor, Operand]] = {}
        for place in plan.written:
            tensor = arguments[int(place)] if place.isdigit() and int(place) < len(arguments) else keywords.get(place)
            operand: Any = (
                call.arguments[int(place)]
                if place.isdigit() and int(place) < len(call.arguments)
                else call.keywords.get(place)
            )
            if isinstance(tensor, list):
                pairs = [(f"{place}.{number}", each, operand[number]) for number, each in enumerate(tensor)]
            else:
                pairs = [(place, tensor, operand)]
            for where, each, own in pairs:
                if isinstance(each, torch.Tensor) and each.is_cuda and isinstance(own, Operand):
                    written_places[where] = (each, own)
        own_operands = {id(operand) for _, operand in written_places.values()}
        is_sent = plan.name == "aten::copy_" and isinstance(arguments[1], torch.Tensor) and not arguments[1].is_cuda
        for operand in _operands(call):
            if id(operand) in own_operands and (
                overwrites or (plan.name in _WRITES_BY_INDEX and _is_new(operand.content))
            ):
                continue
            certainty = max(certainty, operand.content.certainty)
            depth = max(depth, operand.content.depth)
        for where, (tensor, operand) in written_places.items():
            block = self.contents.block_of(tensor)
            base: BlockContent | None = operand.content
            is_elsewhere = not where[0].isdigit() and self.contents.get(block) is not base
            if is_elsewhere or (overwrites and TensorView(tensor).bytes >= operand.content.bytes):
                base = None  # `out=` has other memory now; an operator within may have written the same
            standing, base_counts = certainty, False
            if base is not None and not _is_new(base):
                # of memory that is new nothing else is read
                base_counts = True
                standing = max(certainty, base.certainty)
                depth = max(depth, base.depth)
            self._put(
                block,
                tensor,
                call,
                standing,
                depth + 1,
                where,
                base,
                base_counts=base_counts,
                is_sent=is_sent and base is None,
            )
        _let_go(call, own_operands)

    def _optimizers(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Note what an optimizer does to all of its tensors at once, without writing each operation down."""
        result = run_on(keyset, plan, operator, arguments, keywords)
        for place in plan.written:
            tensors = arguments[int(place)] if place.isdigit() and int(place) < len(arguments) else keywords.get(place)
            if isinstance(tensors, torch.Tensor):
                if plan.name.startswith("aten::_amp_foreach"):
                    self._assume_finite(tensors)  # found_inf
                continue
            for each in tensors or ():
                if each.is_cuda and not _is_opaque(each):
                    self._note_updated(each)
        return result

    def _note_updated(self, tensor: torch.Tensor) -> None:
        """Take floats for about what they were: a second moment stays positive, a weight of its size."""
        block = self.contents.block_of(tensor)
        content = self.contents.get(block)
        if content is not None and content.is_float:
            content.certainty = max(content.certainty, Certainty.DRAWN)
        else:
            self.contents.put(block, _unknown(self.contents.whole_bytes(block), tensor.dtype))

    def _assume_finite(self, found_inf: torch.Tensor) -> None:
        if found_inf.is_cuda and (content := self.contents.get(self.contents.block_of(found_inf))) is not None:
            content.certainty = max(content.certainty, Certainty.ASSUMED)

    def end_capture(self) -> list[tuple[tuple[int, int], torch.dtype]]:
        """Return the blocks that a CUDA graph has written while it was captured."""
        self.is_recording_a_graph = False
        captured, self._captured = self._captured, []
        return captured

    def note_replay(self, captured: Sequence[tuple[tuple[int, int], torch.dtype]]) -> None:
        """Know nothing of what a graph writes at a replay."""
        for block, dtype in captured:
            self.contents.put(block, _unknown(block[1], dtype))

    def note_unseen(self, tensor: torch.Tensor) -> None:
        """Note that a kernel that no operator launches may have written a tensor."""
        try:
            block = self.contents.block_of(tensor)
        except (RuntimeError, NotImplementedError):
            return
        content = self.contents.get(block)
        if not block[0] or (content is not None and content.is_sent and not content.is_float):
            return
        self.contents.put(block, _unknown(self.contents.whole_bytes(block), tensor.dtype))

    def _made_of_a_list(self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any]) -> Any:
        """Take what a tensor made of numbers, or of an array, holds from its copy.

        PyTorch makes it with our key shut out (`internal_new_from_data` in torch/csrc/utils/tensor_new.cpp).
        """
        tensor = arguments[0]
        if tensor.__class__ is torch.Tensor and tensor.is_cuda and tensor.layout == torch.strided:
            evaluation = self._evaluation
            block = self.contents.block_of(tensor)
            size = block[1]
            if size <= evaluation.bound_of(tensor.dtype) and evaluation.has_room(size):
                with torch._C._ExcludeDispatchKeyGuard(ONLY):
                    value = torch.UntypedStorage(size)
                if size and self._take_sent(block[0], size, value.data_ptr()):
                    content = BlockContent(size, tensor.dtype, Certainty.KNOWN, is_sent=True)
                    evaluation.keep(content, value)
                    self.contents.put(block, content)
        return run_on(keyset, plan, operator, arguments, {})

    # ---- what is read

    @property
    def _is_answering(self) -> bool:
        """Whether an operator runs whose reads are answered with its count."""
        return bool(getattr(self._here, "answers", 0))

    def _scalar(self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any]) -> Any:
        tensor = arguments[0]
        if not tensor.is_cuda or self._is_answering:
            return run_on(keyset, plan, operator, arguments, {})
        within: str | None = getattr(self._here, "within", None)
        with self._reads.answered():
            result = run_on(keyset, plan, operator, arguments, {})
        kind = ReadKind.SHAPE if within in _SIZED_BY_READS else ReadKind.of_number(tensor.dtype)
        name = within or "item"
        found: Any
        try:
            operand = self._operand(tensor)
            if kind != ReadKind.SHAPE and (truth := self._reads.truth_for(tensor.dtype, operand.content)) is not None:
                return truth
            rounds = self._rounds(operand, kind)
            if kind == ReadKind.BRANCH and rounds:
                if (ended := self.waiting.is_equal_by_now(operand, rounds)) is not None:
                    found, certainty = ended, Certainty.DRAWN
                    self._reads.note(kind, name, certainty, tensor.dtype.itemsize)
                    return found
                self.waiting.falls(operand, rounds)
            value = self._evaluation.value_of(operand)
            found = value.item()
            certainty = operand.content.certainty
            if kind == ReadKind.FLOAT and rounds:
                found *= self.waiting.share_after(rounds)
        except (EvaluationError, RuntimeError, NotImplementedError):
            found, certainty = result, Certainty.UNKNOWN
        self._reads.note(kind, name, certainty, tensor.dtype.itemsize)
        return found

    def _rounds(self, operand: Operand, kind: ReadKind) -> int:
        """Return how often the line that reads has read what was drawn before, while nothing new came to the card."""
        if operand.content.certainty < Certainty.DRAWN:
            return 0
        return self.waiting.rounds_of(callers_line(), kind)

    def _copied_to_host(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        target, source = arguments[0], arguments[1]
        operand: Any = None
        with suppress(RuntimeError, NotImplementedError):
            operand = self._operand(source)
        with self._reads.answered():
            result = run_on(keyset, plan, operator, arguments, keywords)
        certainty = Certainty.UNKNOWN
        size = source.numel() * source.dtype.itemsize
        if isinstance(operand, Operand) and size <= self._evaluation.bound_of(source.dtype):
            try:
                value = self._evaluation.value_of(operand)
                with torch._C._ExcludeDispatchKeyGuard(ONLY):
                    target.copy_(value)
                    if source.numel() == 1 and operand.content.is_float:
                        target.mul_(self.waiting.share_after(self._rounds(operand, ReadKind.FLOAT)))
                certainty = operand.content.certainty
            except (EvaluationError, RuntimeError):
                pass
        self._reads.note(ReadKind.of_copy(source.dtype), "copy", certainty, size)
        return result

    def _counted(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Run an operator that reads a count back, with the count that it has to read."""
        if self._is_answering:  # within another: its answer counts
            return run_on(keyset, plan, operator, arguments, keywords)
        call = self._call(plan, operator, arguments, keywords)
        certainty, _ = self._standing(call, plan)
        count, values = self._count(plan, call)
        certainty = Certainty.UNKNOWN if values is None else max(certainty, certainty_of(call))
        result = self._answering(count, keyset, plan, operator, arguments, keywords)
        self._reads.note(ReadKind.SHAPE, plan.name.partition("::")[2].strip("_"), certainty, 8)
        results = result if isinstance(result, tuple | list) else (result,)
        if values is not None and all(
            each.size() == value.size() for each, value in zip(results, values, strict=True) if each.numel()
        ):
            for each, value in zip(results, values, strict=True):
                if each.is_cuda and each.numel():
                    self._keep(each, value, certainty)
        return result

    def _count(self, plan: OperatorPlan, call: OperatorCall) -> tuple[int, list[torch.Tensor] | None]:
        """Return the count that an operator reads back, and its results on the host; None where they cannot be had."""
        # not in its context: a result with a content is what the call makes
        try:
            values = self._evaluation.results_of(call)
        except (EvaluationError, RuntimeError, NotImplementedError, IndexError, ValueError):
            return 0, None
        dimension = 0
        if plan.name in ("aten::unique_dim", "aten::unique_dim_consecutive"):
            dimension = int(call.arguments[1])
        return int(values[0].shape[dimension]), values

    def _coalesced(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Tell a sparse tensor how many of its indices are different."""
        sparse = arguments[0]
        if not sparse.is_cuda or self._is_answering:
            return run_on(keyset, plan, operator, arguments, keywords)
        indices = sparse._indices()
        count, certainty, different = 0, Certainty.UNKNOWN, None
        try:
            operand = self._operand(indices)
            value = self._evaluation.value_of(operand)
            certainty = operand.content.certainty
            with torch._C._ExcludeDispatchKeyGuard(ONLY):
                different = torch.unique(value, dim=1)
                count = int(different.shape[1])
        except (EvaluationError, RuntimeError):
            pass
        result = self._answering(count, keyset, plan, operator, arguments, keywords)
        self._forget_parts(result)
        if different is not None and result._indices().size() == different.size() and different.numel():
            self._keep(result._indices(), different, certainty)
        self._reads.note(ReadKind.SHAPE, "coalesce", certainty, 8)
        return result

    def _equal(self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any]) -> Any:
        """Tell whether two tensors are equal; within, PyTorch compares without its dispatcher."""
        certainty, is_equal = Certainty.UNKNOWN, False
        try:
            call = self._call(plan, operator, arguments, {})
            certainty, _ = self._standing(call, plan)
            is_equal = bool(self._evaluation.results_of(call)[0])
            certainty = max(certainty, certainty_of(call))
            if certainty >= Certainty.DRAWN and not is_equal:
                rounds = self.waiting.rounds_of(callers_line(), ReadKind.BRANCH)
                is_equal = self.waiting.is_near(rounds)
        except (EvaluationError, RuntimeError, NotImplementedError):
            certainty = Certainty.UNKNOWN
        result = self._answering(int(is_equal), keyset, plan, operator, arguments, {})
        self._reads.note(ReadKind.BRANCH, "equal", certainty, 1)
        return result

    def _answering(
        self,
        count: int,
        keyset: Any,
        plan: OperatorPlan,
        operator: Any,
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
    ) -> Any:
        here = self._here
        here.answers = getattr(here, "answers", 0) + 1
        self._answer(count)
        try:
            with self._reads.answered():
                return run_on(keyset, plan, operator, arguments, keywords)
        finally:
            self._answer(None)
            here.answers -= 1

    def _within(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Run an operator whose own reads are seen one by one, and name it for them."""
        here = self._here
        outer, here.within = getattr(here, "within", None), plan.name
        try:
            result = run_on(keyset, plan, operator, arguments, keywords)
        finally:
            here.within = outer
        if isinstance(result, torch.Tensor) and result.is_cuda:
            self._note_results(plan, operator, arguments, keywords, (result,))
        return result

    def _held(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Certainty] | None:
        """Return what a tensor holds, and how well that is known; None if it cannot be had."""
        try:
            operand = self._operand(tensor)
            with torch._C._ExcludeDispatchKeyGuard(ONLY):
                value = self._evaluation.value_of(operand)
        except (EvaluationError, RuntimeError, NotImplementedError):
            return None
        return value, operand.content.certainty

    def _keep(self, tensor: torch.Tensor, value: torch.Tensor, certainty: Certainty) -> None:
        """Say what a tensor holds from now on; what else its block holds stays."""
        evaluation, contents = self._evaluation, self.contents
        block = contents.block_of(tensor)
        before = contents.get(block)
        size = block[1] if before is None else max(block[1], before.bytes)
        view = TensorView(tensor)
        with torch._C._ExcludeDispatchKeyGuard(ONLY):
            if before is not None and before.value is not None and view.bytes < size:
                whole = extended(before.value, size)
                certainty = max(certainty, before.certainty)
            else:
                whole = torch.zeros(size, dtype=torch.uint8).untyped_storage()
            view.of(whole).copy_(value)
        content = BlockContent(size, tensor.dtype, certainty)
        if size <= evaluation.bound_of(tensor.dtype) and evaluation.has_room(size):
            evaluation.keep(content, whole)
        contents.put(block, content)


_FILL: Final = torch.ops.aten.full.default


def _assumed(call: OperatorCall) -> list[Any] | None:
    """Return what fills a question whether numbers are finite, as arguments of `full`; None for any other question."""
    name = call.operator._schema.name
    arguments = call.arguments
    operand = arguments[0] if arguments else None
    if not isinstance(operand, Operand) or not operand.content.is_float:
        return None
    if _has_infinity(operand.content):
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
    return None if answer is None else [list(operand.size), answer]


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
    return any(_has_infinity(each.content, depth - 1) for each in _operands(call) if each.content.is_float)


def _operands(call: OperatorCall) -> list[Operand]:
    found: list[Operand] = []
    for argument in (*call.arguments, *call.keywords.values()):
        if isinstance(argument, Operand):
            found.append(argument)
        elif isinstance(argument, list):
            found.extend(each for each in argument if isinstance(each, Operand))
    return found


def _is_opaque(tensor: torch.Tensor) -> bool:
    """Tell whether what a tensor holds is more than a view of one block of memory."""
    return tensor.layout != torch.strided or tensor.is_nested or tensor.is_neg() or tensor.is_conj()


def _unwritten(size_bytes: int, tensor: torch.Tensor) -> BlockContent:
    """Return the content of memory that nobody has written since it was allocated."""
    content = _unknown(size_bytes, tensor.dtype)
    content.is_unwritten = True
    if content.is_float and tensor.dim() > 1 and tensor.storage_offset() == 0:
        content.columns, content.column = columns_of(tensor.size(), tensor.stride())
    return content


def _unknown(size_bytes: int, dtype: torch.dtype) -> BlockContent:
    """Return the content of memory that somebody has written whom we do not see."""
    is_float = dtype.is_floating_point or dtype.is_complex
    return BlockContent(size_bytes, dtype, Certainty.DRAWN if is_float else Certainty.UNKNOWN)


def _is_sent(source: Any) -> bool:
    """Tell whether a copy's source is several numbers of the host's."""
    return isinstance(source, torch.Tensor) and not source.is_cuda and source.numel() >= _BATCH


def _is_new(content: BlockContent) -> bool:
    """Tell whether nobody is to have written memory: products, which nobody sees, are of floats."""
    return content.is_unwritten and not content.is_float


def _is_among(tensor: torch.Tensor, plan: OperatorPlan, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    for place in plan.written:
        own = arguments[int(place)] if place.isdigit() and int(place) < len(arguments) else keywords.get(place)
        for each in own if isinstance(own, list | tuple) else (own,):
            if each is tensor:
                return True
    return False


def _let_go(call: OperatorCall, own_operands: set[int]) -> None:
    """Leave out what a written argument held, where the call does not read it: the target has it if it is needed."""

    def without(argument: Any) -> Any:
        if isinstance(argument, list):
            return [without(each) for each in argument]
        return None if id(argument) in own_operands else argument

    call.arguments = [without(each) for each in call.arguments]
    call.keywords = {name: without(each) for name, each in call.keywords.items()}
