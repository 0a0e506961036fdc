"""Record operators that write to existing tensors instead of creating new tensors.

Examples are in-place operators, operators with `out=`, and optimizer steps. Some operators change arguments that their
schema declares as read-only.
"""

from typing import Any, Final

import torch

from ullage.gpu.values.content import (
    BlockContent,
    Certainty,
    EmulatedDriver,
    Operand,
    OperatorCall,
    TensorView,
    UpdatedContent,
    WrittenView,
)
from ullage.gpu.values.dispatch import ONLY, Invocation, tensors_in
from ullage.gpu.values.evaluation import operands_in
from ullage.gpu.values.notes import Notes, is_on_card, is_opaque, unknown
from ullage.gpu.values.operator_plan import argument_at
from ullage.gpu.values.waiting import Waiting

# A copy to the GPU with at least this number of values counts as a new batch.
_BATCH: Final = 2
# They write an argument without reading it.
_OVERWRITES: Final = frozenset(
    (
        *("aten::zero_", "aten::fill_", "aten::copy_", "aten::normal_", "aten::uniform_", "aten::random_"),
        *("aten::bernoulli_", "aten::exponential_", "aten::cauchy_", "aten::geometric_", "aten::log_normal_"),
    )
)
WRITES_UNSAID: Final = {
    "aten::cudnn_batch_norm": (3, 4),
    "aten::native_batch_norm": (3, 4),
    "aten::batch_norm_gather_stats": (3, 4),
    "aten::batch_norm_gather_stats_with_counts": (3, 4),
    "aten::batch_norm_update_stats": (1, 2),
}
"""The positions of the arguments for running statistics, for each operator that changes them.

The operators' schemas declare the running statistics as read-only.
"""


# Weight decay and gradient clipping use them, and change an optimizer's tensors only slightly.
_DECAYS: Final = frozenset(("aten::_foreach_mul_", "aten::_foreach_div_"))
_ADAM: Final = frozenset(("aten::_fused_adam_", "aten::_fused_adamw_"))
# The last operation of an Adam step: it adds the mean gradient divided by its size, times the bias-corrected learning
# rate.
_ADAM_BY_STEPS: Final = "aten::_foreach_addcdiv_"


class Writes:
    """Records operators that write existing GPU memory."""

    def __init__(self, notes: Notes, waiting: Waiting, driver: EmulatedDriver) -> None:
        self._notes = notes
        self._waiting = waiting
        self._driver = driver

    def run(self, op: Invocation) -> Any:
        """Run an operator whose schema declares the arguments that it writes."""
        plan = op.plan
        if plan.is_foreign:
            return self._written_unseen(op)
        if plan.name == "aten::resize_":
            return self._resized(op)
        if plan.has_lists_only and not _has_whole_numbers_only(op):
            return self._optimizers(op)
        target: Any = argument_at(plan.written[0], op.arguments, op.keywords)
        if isinstance(target, list):
            target = target[0] if target else None
        if not is_on_card(target) or is_opaque(target):
            result = op.run()
            self._lose(op)
            return result
        is_sent = plan.name == "aten::copy_" and _is_sent(op.arguments[1])
        if is_sent:
            self._waiting.renew()
            self._driver.sent_is_noted(True)  # noqa: FBT003  # by place
        call = self._notes.call(op)
        try:
            result = op.run()
        finally:
            if is_sent:
                self._driver.sent_is_noted(False)  # noqa: FBT003  # by place
        try:
            self._note_written(op, call)
        except (RuntimeError, NotImplementedError):  # tensors without their own storage
            self._lose(op)
        returned = result if isinstance(result, tuple | list) else (result,)
        own = list(tensors_in(op.written()))
        for place, each in enumerate(returned):
            if is_on_card(each) and not any(each is one for one in own):
                certainty, depth = self._notes.standing(call, plan)
                self._notes.put(self._notes.contents.block_of(each), each, call, certainty, depth, place)
        return result

    def _lose(self, op: Invocation) -> None:
        for each in tensors_in(op.written()):
            if each.is_cuda and each.layout == torch.strided:
                self._notes.unseen(each)

    def _note_written(self, op: Invocation, call: OperatorCall) -> None:
        plan = op.plan
        certainty = Certainty.DRAWN if plan.is_random else Certainty.KNOWN
        depth = 0
        overwrites = plan.name in _OVERWRITES or not plan.written[0].isdigit()
        written_places: dict[str, tuple[torch.Tensor, Operand]] = {}
        for place, tensor in zip(plan.written, op.written(), strict=True):
            operand: Any = argument_at(place, call.arguments, call.keywords)
            if isinstance(tensor, list):
                pairs = [(f"{place}.{number}", each, operand[number]) for number, each in enumerate(tensor)]
            else:
                pairs = [(place, tensor, operand)]
            for where, each, own in pairs:
                if isinstance(each, torch.Tensor) and each.is_cuda and isinstance(own, Operand):
                    written_places[where] = (each, own)
        own_operands = {id(operand) for _, operand in written_places.values()}
        for operand in operands_in(call):
            if id(operand) in own_operands and overwrites:
                continue
            if not operand.content.is_new:
                certainty = max(certainty, operand.content.certainty)
            depth = max(depth, operand.content.depth)
        for where, (tensor, operand) in written_places.items():
            block = self._notes.contents.block_of(tensor)
            base: BlockContent | None = operand.content
            is_elsewhere = not where[0].isdigit() and self._notes.contents.get(block) is not base
            if is_elsewhere or (overwrites and TensorView(tensor).bytes >= operand.content.bytes):
                base = None  # `out=` now has other memory; an inner operator may have written the same.
            standing, base_counts = certainty, False
            if base is not None and not base.is_new:
                base_counts = True
                standing = max(certainty, base.certainty)
                depth = max(depth, base.depth)
            self._notes.put(block, tensor, call, standing, depth + 1, where, base, base_counts=base_counts)
        _let_go(call, own_operands)

    def _written_unseen(self, op: Invocation) -> Any:
        result = op.run()
        for tensor in tensors_in((*op.arguments, *op.keywords.values(), result)):
            if tensor.is_cuda and not is_opaque(tensor):
                self._notes.unseen(tensor)
        return result

    def run_unsaid(self, op: Invocation) -> Any:
        """Run an operator that changes some of its arguments, although its schema declares them as read-only."""
        result = op.run()
        for place in WRITES_UNSAID[op.plan.name]:
            if is_on_card(op.arguments[place]):
                self._notes.unseen(op.arguments[place])
        return result

    def _optimizers(self, op: Invocation) -> Any:
        contents = self._notes.contents
        # Lists of several types: PyTorch runs an operator for each tensor, which is intercepted.
        first = op.arguments[0]
        whole = [each for each in first if not each.is_floating_point()] if isinstance(first, list | tuple) else ()
        before = {id(each): contents.get(contents.block_of(each)) for each in whole if each.is_cuda}
        result = op.run()
        rates = _rates(op)
        for place, tensors in zip(op.plan.written, op.written(), strict=True):
            if isinstance(tensors, torch.Tensor):
                if op.plan.name.startswith("aten::_amp_foreach"):
                    self._assume_finite(tensors)  # found_inf
                continue
            for number, each in enumerate(tensors or ()):
                if before and id(each) in before and contents.get(contents.block_of(each)) is not before[id(each)]:
                    continue
                if each.is_cuda and not is_opaque(each):
                    rate = rates[number] if rates and place == "0" else None
                    self._note_updated(each, rate, is_of_mean=op.plan.name == _ADAM_BY_STEPS)
        return result

    def _note_updated(self, tensor: torch.Tensor, rate: float | None, *, is_of_mean: bool) -> None:
        contents = self._notes.contents
        block = contents.block_of(tensor)
        content = contents.get(block)
        if content is None or not content.is_float:
            contents.put(block, unknown(contents.whole_bytes(block), tensor.dtype))
        elif content.bytes > self._notes.evaluation.bound_of(content.dtype):  # random values are generated if needed
            content.certainty = max(content.certainty, Certainty.DRAWN)
        else:
            contents.put(block, UpdatedContent(content, tensor, rate, is_of_mean=is_of_mean))

    def _assume_finite(self, found_inf: torch.Tensor) -> None:
        contents = self._notes.contents
        if found_inf.is_cuda and (content := contents.get(contents.block_of(found_inf))) is not None:
            content.certainty = max(content.certainty, Certainty.ASSUMED)

    # PyTorch copies the data without an operator.
    def _resized(self, op: Invocation) -> Any:
        tensor = op.arguments[0]
        if not tensor.is_cuda or is_opaque(tensor):
            return op.run()
        contents = self._notes.contents
        before = contents.block_of(tensor)
        content = contents.get(before)
        result = op.run()
        after = contents.block_of(tensor)
        if after[0] == before[0]:
            contents.get(after)  # extends the content to the bytes now in use
            return result
        if content is None or not before[0] or not after[0]:
            return result
        size = max(contents.whole_bytes(after), content.bytes)
        if self._notes.is_recording_a_graph or (
            size > self._notes.evaluation.bound_of(content.dtype) and not content.is_float
        ):
            contents.put(after, unknown(size, content.dtype))
            return result
        carried = BlockContent(size, content.dtype, content.certainty, depth=content.depth + 1)
        carried.columns, carried.column = content.columns, content.column
        part = torch.empty(content.bytes, dtype=torch.uint8, device="meta")
        call = OperatorCall(torch.ops.aten.copy_.default, [None, Operand(content, part)], {}, is_random=False)
        call.targets.append(WrittenView(carried, TensorView(part), "0"))
        carried.call = call
        contents.put(after, carried)
        return result

    def made_of_a_list(self, op: Invocation) -> Any:
        """Set the content of a tensor that was made from a list of numbers or an array.

        The content is taken from the copy to the GPU. PyTorch excludes ullage's dispatch key while it makes the tensor
        (`internal_new_from_data` in torch/csrc/utils/tensor_new.cpp).
        """
        tensor = op.arguments[0]
        if tensor.__class__ is torch.Tensor and tensor.is_cuda and tensor.layout == torch.strided:
            evaluation = self._notes.evaluation
            block = self._notes.contents.block_of(tensor)
            size = block[1]
            if size <= evaluation.bound_of(tensor.dtype) and evaluation.has_room(size):
                with torch._C._ExcludeDispatchKeyGuard(ONLY):
                    value = torch.UntypedStorage(size)
                if size and self._driver.take_sent(block[0], size, value.data_ptr()):
                    content = BlockContent(size, tensor.dtype, Certainty.KNOWN)
                    evaluation.keep(content, value)
                    self._notes.contents.put(block, content)
        return op.run()


def _rates(op: Invocation) -> list[float] | None:
    name, arguments = op.plan.name, op.arguments
    count = len(arguments[0]) if arguments and isinstance(arguments[0], list | tuple) else 0
    if name in _DECAYS:
        return [0.0] * count
    said: Any = None
    if name in _ADAM:
        said = op.keywords.get("lr")
    elif name == _ADAM_BY_STEPS and len(arguments) > 3:
        said = arguments[3]
    if isinstance(said, float):
        said = [said] * count
    if not isinstance(said, list | tuple) or len(said) != count or not all(isinstance(each, float) for each in said):
        return None
    return [abs(each) for each in said]


def _has_whole_numbers_only(op: Invocation) -> bool:
    if not op.plan.name.startswith("aten::_foreach_"):
        return False
    return not any(each.is_floating_point() or each.is_complex() for each in tensors_in(op.written()))


def _is_sent(source: Any) -> bool:
    return isinstance(source, torch.Tensor) and not source.is_cuda and source.numel() >= _BATCH


def _let_go(call: OperatorCall, own_operands: set[int]) -> None:

    def without(argument: Any) -> Any:
        if isinstance(argument, list):
            return [without(each) for each in argument]
        return None if id(argument) in own_operands else argument

    call.arguments = [without(each) for each in call.arguments]
    call.keywords = {name: without(each) for name, each in call.keywords.items()}
