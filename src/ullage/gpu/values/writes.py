"""Operators that write memory that is there: in place, into `out=`, for all of an optimizer's tensors, or unsaid."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import torch

from ullage.gpu.values.content import (
    BlockContent,
    Certainty,
    Operand,
    OperatorCall,
    TensorView,
    UpdatedContent,
    WrittenView,
)
from ullage.gpu.values.dispatch import ONLY, run_on
from ullage.gpu.values.driver import EmulatedDriver
from ullage.gpu.values.evaluation import operands_in
from ullage.gpu.values.notes import Notes, is_on_card, is_opaque, unknown
from ullage.gpu.values.operator_plan import OperatorPlan
from ullage.gpu.values.waiting import Waiting

_BATCH: Final = 2
"""So many numbers sent by the host are something new to work on."""
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
WRITES_UNSAID: Final = {
    "aten::cudnn_batch_norm": (3, 4),
    "aten::native_batch_norm": (3, 4),
    "aten::batch_norm_gather_stats": (3, 4),
    "aten::batch_norm_gather_stats_with_counts": (3, 4),
    "aten::batch_norm_update_stats": (1, 2),
}
"""Operators that write arguments (a module's running statistics) of which their schema does not say so."""


_DECAYS: Final = frozenset(("aten::_foreach_mul_", "aten::_foreach_div_"))
"""The operators that leave numbers about as they are: a weight's decay, a gradient's clipping."""
_ADAM: Final = frozenset(("aten::_fused_adam_", "aten::_fused_adamw_"))
_ADAM_BY_STEPS: Final = "aten::_foreach_addcdiv_"
"""The last operation of a step of Adam: it adds a mean of gradients over their size, times the rate over the share that
the mean has of all steps by then."""


class Writes:
    """Notes what operators write."""

    def __init__(self, notes: Notes, waiting: Waiting, driver: EmulatedDriver) -> None:
        self._notes = notes
        self._waiting = waiting
        self._driver = driver

    def run(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Run an operator that says what it writes."""
        first = plan.written[0]
        target: Any = arguments[int(first)] if first.isdigit() and int(first) < len(arguments) else keywords.get(first)
        if plan.is_foreign:
            return self._written_unseen(keyset, plan, operator, arguments, keywords)
        if plan.name == "aten::resize_":
            return self._resized(keyset, plan, operator, arguments, keywords)
        if plan.has_lists_only:
            return self._optimizers(keyset, plan, operator, arguments, keywords)
        if isinstance(target, list):
            target = target[0] if target else None
        if not is_on_card(target) or is_opaque(target):
            return run_on(keyset, plan, operator, arguments, keywords)
        is_sent = plan.name == "aten::copy_" and _is_sent(arguments[1])
        if is_sent:
            self._waiting.renew()
            self._driver.sent_is_noted(True)  # noqa: FBT003  # by place
        call = self._notes.call(plan, operator, arguments, keywords)
        try:
            result = run_on(keyset, plan, operator, arguments, keywords)
        finally:
            if is_sent:
                self._driver.sent_is_noted(False)  # noqa: FBT003  # by place
        with suppress(RuntimeError, NotImplementedError):
            self._note_written(plan, call, arguments, keywords)
        returned = result if isinstance(result, tuple | list) else (result,)
        fresh = [
            (place, each)
            for place, each in enumerate(returned)
            if isinstance(each, torch.Tensor) and each.is_cuda and not _is_among(each, plan, arguments, keywords)
        ]
        for place, each in fresh:
            certainty, depth = self._notes.standing(call, plan)
            self._notes.put(self._notes.contents.block_of(each), each, call, certainty, depth, place)
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
        for operand in operands_in(call):
            if id(operand) in own_operands and (
                overwrites or (plan.name in _WRITES_BY_INDEX and _is_new(operand.content))
            ):
                continue
            certainty = max(certainty, operand.content.certainty)
            depth = max(depth, operand.content.depth)
        for where, (tensor, operand) in written_places.items():
            block = self._notes.contents.block_of(tensor)
            base: BlockContent | None = operand.content
            is_elsewhere = not where[0].isdigit() and self._notes.contents.get(block) is not base
            if is_elsewhere or (overwrites and TensorView(tensor).bytes >= operand.content.bytes):
                base = None  # `out=` has other memory now; an operator within may have written the same
            standing, base_counts = certainty, False
            if base is not None and not _is_new(base):
                # of memory that is new nothing else is read
                base_counts = True
                standing = max(certainty, base.certainty)
                depth = max(depth, base.depth)
            self._notes.put(block, tensor, call, standing, depth + 1, where, base, base_counts=base_counts)
        _let_go(call, own_operands)

    def _written_unseen(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Run an operator of somebody else's that writes its arguments, and know nothing of what it has written."""
        result = run_on(keyset, plan, operator, arguments, keywords)
        for each in (*arguments, *keywords.values(), result):
            for tensor in each if isinstance(each, list | tuple) else (each,):
                if isinstance(tensor, torch.Tensor) and tensor.is_cuda and not is_opaque(tensor):
                    self._notes.unseen(tensor)
        return result

    def run_unsaid(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Run an operator that writes arguments of which its schema does not say so."""
        result = run_on(keyset, plan, operator, arguments, keywords)
        for place in WRITES_UNSAID[plan.name]:
            if is_on_card(arguments[place]):
                self._notes.unseen(arguments[place])
        return result

    def _optimizers(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Note what an optimizer does to all of its tensors at once, without writing each operation down."""
        result = run_on(keyset, plan, operator, arguments, keywords)
        rates = _rates(plan, arguments, keywords)
        for place in plan.written:
            tensors = arguments[int(place)] if place.isdigit() and int(place) < len(arguments) else keywords.get(place)
            if isinstance(tensors, torch.Tensor):
                if plan.name.startswith("aten::_amp_foreach"):
                    self._assume_finite(tensors)  # found_inf
                continue
            for number, each in enumerate(tensors or ()):
                if each.is_cuda and not is_opaque(each):
                    rate = rates[number] if rates and place == "0" else None
                    self._note_updated(each, rate, is_of_mean=plan.name == _ADAM_BY_STEPS)
        return result

    def _note_updated(self, tensor: torch.Tensor, rate: float | None, *, is_of_mean: bool) -> None:
        """Have memory hold about what it held: a second moment stays positive, a weight of its size."""
        contents = self._notes.contents
        block = contents.block_of(tensor)
        content = contents.get(block)
        if content is None or not content.is_float:
            contents.put(block, unknown(contents.whole_bytes(block), tensor.dtype))
        elif content.bytes > self._notes.evaluation.bound_of(content.dtype):  # whoever asks has it drawn
            content.certainty = max(content.certainty, Certainty.DRAWN)
        else:
            contents.put(block, UpdatedContent(content, tensor, rate, is_of_mean=is_of_mean))

    def _assume_finite(self, found_inf: torch.Tensor) -> None:
        contents = self._notes.contents
        if found_inf.is_cuda and (content := contents.get(contents.block_of(found_inf))) is not None:
            content.certainty = max(content.certainty, Certainty.ASSUMED)

    def _resized(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Carry what a tensor holds over to the larger memory that it gets: PyTorch copies it without an operator."""
        tensor = arguments[0]
        if not tensor.is_cuda or is_opaque(tensor):
            return run_on(keyset, plan, operator, arguments, keywords)
        contents = self._notes.contents
        before = contents.block_of(tensor)
        content = contents.get(before)
        result = run_on(keyset, plan, operator, arguments, keywords)
        after = contents.block_of(tensor)
        if after[0] == before[0]:
            contents.get(after)  # counts what is used of it now
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

    def made_of_a_list(
        self, keyset: Any, plan: OperatorPlan, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Any:
        """Take what a tensor made of numbers, or of an array, holds from its copy.

        PyTorch makes it with our key shut out (`internal_new_from_data` in torch/csrc/utils/tensor_new.cpp).
        """
        tensor = arguments[0]
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
        return run_on(keyset, plan, operator, arguments, {})


def _rates(plan: OperatorPlan, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> list[float] | None:
    """Return how far an operator moves each number of its first list's tensors; None where it does not say so."""
    count = len(arguments[0]) if arguments and isinstance(arguments[0], list | tuple) else 0
    if plan.name in _DECAYS:
        return [0.0] * count
    said: Any = None
    if plan.name in _ADAM:
        said = keywords.get("lr")
    elif plan.name == _ADAM_BY_STEPS and len(arguments) > 3:
        said = arguments[3]
    if isinstance(said, float):
        said = [said] * count
    if not isinstance(said, list | tuple) or len(said) != count or not all(isinstance(each, float) for each in said):
        return None
    return [abs(each) for each in said]


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
