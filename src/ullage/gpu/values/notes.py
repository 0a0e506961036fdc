"""Record operators with their arguments, without running them on the host.

Numbers are assumed to be finite, unless a script has put infinities among them.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import torch

from ullage.gpu.values.content import (
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
from ullage.gpu.values.dispatch import ONLY, Invocation
from ullage.gpu.values.evaluation import Evaluation, EvaluationError, on_the_host, operands_in
from ullage.gpu.values.operator_plan import OperatorPlan
from ullage.gpu.values.sparse import made_of, parts_of

# The longest chain of operations that is recorded. A mixture-of-experts model has about 60 operations between two
# choices of experts, including the experts, which run one after another.
_DEEPEST: Final = 192
# Random values of at most this size are computed when their chain gets too long. So bounds on them stay true, for
# example that a box is inside its image.
_DRAWN_BYTES: Final = 256 << 10
_FAR_BACK: Final = 12
_FILL: Final = torch.ops.aten.full.default


class Notes:
    """A record of the operations that compute the contents of GPU memory."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        self.contents = BlockContents()
        """The contents of GPU memory."""
        self.is_recording_a_graph = False
        """Whether a CUDA graph is being captured. Each replay writes the captured memory again."""
        self._captured: list[tuple[tuple[int, int], torch.dtype]] = []

    def clear(self) -> None:
        """Forget the contents of all blocks of GPU memory."""
        self.contents.clear()
        self._captured = []

    # ---- arguments

    def operand(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            if argument.is_cuda:
                if is_opaque(argument):
                    return Operand(unknown(0, argument.dtype), torch.empty(0, dtype=argument.dtype, device="meta"))
                contents = self.contents
                block = contents.block_of(argument)
                content = contents.get(block) if block[0] else BlockContent(0, argument.dtype, Certainty.KNOWN)
                if content is None:
                    content = _unwritten(contents.whole_bytes(block), argument, is_new=contents.is_new(block))
                    contents.put(block, content)
                return Operand(content, argument)
            return self._host_argument(argument)
        if isinstance(argument, list | tuple):
            return [self.operand(each) for each in argument]
        return argument

    # The script may change the tensor later.
    def _host_argument(self, argument: torch.Tensor) -> Any:
        dtype = argument.dtype
        size = argument.numel() * dtype.itemsize
        evaluation = self.evaluation
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

    def call(self, op: Invocation) -> OperatorCall:
        """Record an operator call with its arguments, without running it on the host."""
        return OperatorCall(
            op.plan.for_host(op.operator, op.arguments),
            [self.operand(each) for each in op.arguments],
            {name: self.operand(each) for name, each in op.keywords.items()},
            is_random=op.plan.is_random,
        )

    def standing(self, call: OperatorCall, plan: OperatorPlan) -> tuple[Certainty, int]:
        """Return how certain the results of an operator call are.

        The second number is the length of the longest chain of recorded operations that leads to the results.
        """
        certainty = Certainty.ASSUMED if plan.is_foreign else Certainty.KNOWN  # if all arguments are known
        if plan.is_random:
            certainty = Certainty.DRAWN
        depth = 0
        for operand in operands_in(call):
            content = operand.content
            if (
                not content.is_unwritten or content.is_float
            ):  # whether the result depends on unwritten memory is found out on the host
                certainty = max(certainty, content.certainty)
            depth = max(depth, content.depth)
        if certainty >= Certainty.DRAWN and (assumed := _assumed_answer(call)) is not None:
            call.operator, call.arguments, call.keywords = _FILL, assumed, {}
            certainty, depth = Certainty.ASSUMED, 0
        return certainty, depth + 1

    # ---- results

    def results(self, op: Invocation, results: Any) -> None:
        """Record how an operator's results are computed."""
        try:
            call = self.call(op)
            certainty, depth = self.standing(call, op.plan)
            sources = {id(operand.content) for operand in operands_in(call)}
            for place, result in enumerate(results):
                if result.__class__ is not torch.Tensor or not result.is_cuda or result.layout != torch.strided:
                    continue
                block = self.contents.block_of(result)
                there = self.contents.get(block)
                if there is not None and id(there) in sources:  # The operator returned one of its arguments.
                    continue
                self.put(block, result, call, certainty, depth, place)
        except (RuntimeError, NotImplementedError):  # tensors without their own storage: sparse, nested
            for result in results:
                if is_on_card(result):
                    self.unseen(result)

    def product(self, op: Invocation, result: Any) -> None:
        """Record a matrix product. ullage treats the product as random numbers, even if both matrices are known."""
        try:
            call = self.call(op)
            _, depth = self.standing(call, op.plan)
            block = self.contents.block_of(result)
            self.put(block, result, call, Certainty.DRAWN, depth, 0)
            content = self.contents.get(block)
        except (RuntimeError, NotImplementedError):  # tensors without their own storage
            self.unseen(result)
            return
        if content is not None:  # used if the values have to be random after all
            content.columns, content.column = columns_of(result.size(), result.stride())

    def put(
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
    ) -> None:
        """Record that an operator call computes the new content of a memory block."""
        evaluation = self.evaluation
        size = block[1] if base is None else max(block[1], base.bytes)
        dtype = tensor.dtype
        content = BlockContent(size, dtype, certainty, depth=depth)
        is_large = size > evaluation.bound_of(dtype)
        if self.is_recording_a_graph:
            self._captured.append((block, dtype))
        if self.is_recording_a_graph or (is_large and not content.is_float):
            content.certainty = Certainty.DRAWN if content.is_float else Certainty.UNKNOWN
            self.contents.put(block, content)
            return
        if is_large:
            content.certainty = max(certainty, Certainty.DRAWN)
        if content.is_float and certainty == Certainty.UNKNOWN and _has_random(call):
            # Random numbers whose mask, or other integers, are unknown are random numbers.
            content.certainty = Certainty.DRAWN
            self.contents.put(block, content)
            return
        content.call = call
        call.targets.append(WrittenView(content, TensorView(tensor), place, base, base_counts=base_counts))
        self.contents.put(block, content)
        if depth >= _DEEPEST:
            # Results of a backward pass do not bound values that are generated later.
            is_wanted = size <= _DRAWN_BYTES and torch._C._current_graph_task_id() == -1
            if content.certainty < Certainty.DRAWN or is_wanted:
                evaluation.shorten(content)
            else:
                content.call = None
                content.depth = 0

    def keep(self, tensor: torch.Tensor, value: torch.Tensor, certainty: Certainty) -> None:
        """Set the values of a GPU tensor. The rest of its memory block stays unchanged."""
        evaluation, contents = self.evaluation, self.contents
        block = contents.block_of(tensor)
        before = contents.get(block)
        size = block[1] if before is None else max(block[1], before.bytes)
        view = TensorView(tensor)
        with torch._C._ExcludeDispatchKeyGuard(ONLY):
            if before is not None and before.value is not None and view.bytes < size:
                whole = extended(before.value, size)
                certainty = max(certainty, before.certainty)
            else:
                whole = torch.zeros(size, dtype=torch.uint8, device="cpu").untyped_storage()
            view.of(whole).copy_(value)
            content = BlockContent(size, tensor.dtype, certainty)
            if before is not None and before.holes is not None and view.bytes < size:
                holes = extended(before.holes.untyped_storage(), size)
                view.of(holes).zero_()
                content.holes = torch.empty(0, dtype=torch.bool, device="cpu").set_(holes)
        if size <= evaluation.bound_of(tensor.dtype) and evaluation.has_room(size):
            evaluation.keep(content, whole)
        contents.put(block, content)

    def held(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Certainty] | None:
        """Return the values of a GPU tensor and their certainty, or None if they cannot be computed."""
        try:
            operand = self.operand(tensor)
            with torch._C._ExcludeDispatchKeyGuard(ONLY):
                value = self.evaluation.value_of(operand)
        except (EvaluationError, RuntimeError, NotImplementedError):
            return None
        return value, self.evaluation.certainty_of(operand)

    def held_sparse(self, sparse: torch.Tensor) -> tuple[torch.Tensor, Certainty] | None:
        """Return a host copy of a sparse GPU tensor and the certainty of its indices.

        The result is None if the values cannot be computed.
        """
        parts = parts_of(sparse)
        found = [each for each in map(self.held, parts) if each is not None and each[1] != Certainty.UNKNOWN]
        if not found or len(found) < len(parts):
            return None
        with suppress(RuntimeError), on_the_host():
            return made_of([value for value, _ in found], sparse), max(certainty for _, certainty in found[:-1])
        return None

    def keep_sparse(self, sparse: torch.Tensor, value: torch.Tensor, certainty: Certainty) -> None:
        """Set the values of the index and value tensors of a sparse GPU tensor."""
        for part, each in zip(parts_of(sparse), parts_of(value), strict=True):
            if part.numel() and part.size() == each.size():
                self.keep(part, each, certainty if not part.is_floating_point() else max(certainty, Certainty.DRAWN))

    # ---- writes without an operator

    def unseen(self, tensor: torch.Tensor) -> None:
        """Mark a tensor's values as unknown, because a GPU kernel outside PyTorch's operators may have written them."""
        try:
            block = self.contents.block_of(tensor)
        except (RuntimeError, NotImplementedError):
            return
        self.contents.put(block, unknown(self.contents.whole_bytes(block), tensor.dtype))

    def lose(self, tensor: torch.Tensor) -> None:
        """Mark a tensor's values as unknown, whatever its layout."""
        if tensor.layout == torch.strided:
            self.unseen(tensor)
        else:
            self.forget_parts(tensor)

    def forget_parts(self, sparse: torch.Tensor) -> None:
        """Mark the indices and values of a sparse tensor as unknown."""
        for part in parts_of(sparse):
            self.contents.put(self.contents.block_of(part), unknown(self.contents.block_of(part)[1], part.dtype))

    def begin_capture(self) -> None:
        """Start to record the writes of a CUDA graph."""
        self.is_recording_a_graph = True

    def end_capture(self) -> list[tuple[tuple[int, int], torch.dtype]]:
        """Return the memory blocks that were written while a CUDA graph was captured."""
        self.is_recording_a_graph = False
        captured, self._captured = self._captured, []
        return captured

    def before_replay(self) -> None:
        """Do nothing: the values before a CUDA graph runs are not needed."""

    def after_replay(self, captured: Sequence[tuple[tuple[int, int], torch.dtype]], _: object) -> None:
        """Mark the memory that a CUDA graph has written as unknown."""
        for block, dtype in captured:
            self.contents.put(block, unknown(block[1], dtype))


def is_on_card(argument: Any) -> bool:
    """Return whether an argument is a tensor on the emulated GPU."""
    return isinstance(argument, torch.Tensor) and argument.is_cuda


def is_opaque(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is more than a view of one memory block: sparse, nested, conjugated or negated."""
    return tensor.layout != torch.strided or tensor.is_nested or tensor.is_neg() or tensor.is_conj()


def unknown(size_bytes: int, dtype: torch.dtype) -> BlockContent:
    """Return a `BlockContent` for GPU memory whose values ullage does not know."""
    is_float = dtype.is_floating_point or dtype.is_complex
    return BlockContent(size_bytes, dtype, Certainty.DRAWN if is_float else Certainty.UNKNOWN)


def _has_random(call: OperatorCall) -> bool:
    return any(each.content.is_float and each.content.certainty == Certainty.DRAWN for each in operands_in(call))


def _unwritten(size_bytes: int, tensor: torch.Tensor, *, is_new: bool) -> BlockContent:
    content = unknown(size_bytes, tensor.dtype)
    content.is_unwritten = is_new
    if content.is_float and tensor.dim() > 1 and tensor.storage_offset() == 0:
        content.columns, content.column = columns_of(tensor.size(), tensor.stride())
    return content


def _assumed_answer(call: OperatorCall) -> list[Any] | None:
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
        if operand.is_same_as(other):  # Only NaN differs from itself.
            answer = name == "aten::eq"
        elif isinstance(other, float) and other in (float("inf"), float("-inf")):
            answer = name == "aten::ne"
    elif name in ("aten::lt", "aten::le") and len(arguments) > 1 and arguments[1] == float("inf"):
        answer = True
    # Infinities are checked last, because it takes long.
    return None if answer is None or _has_infinity(operand.content) else [list(operand.size), answer]


def _has_infinity(content: BlockContent) -> bool:
    level, seen = [content], {content}
    for _ in range(_FAR_BACK):
        sources: list[BlockContent] = []
        for each in level:
            if _is_infinite(each):
                return True
            if each.value is None and each.call is not None:
                sources += (operand.content for operand in operands_in(each.call) if operand.content.is_float)
        level = [each for each in dict.fromkeys(sources) if each not in seen]
        seen.update(level)
    return False


def _is_infinite(content: BlockContent) -> bool:
    if content.value is not None:
        with torch._C._ExcludeDispatchKeyGuard(ONLY):
            numbers = torch.empty(0, dtype=content.dtype, device="cpu").set_(content.value)
            return bool(torch.isinf(numbers).any())
    call = content.call
    return call is not None and any(
        isinstance(each, float) and math.isinf(each) for each in (*call.arguments, *call.keywords.values())
    )
