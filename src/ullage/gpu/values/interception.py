"""Intercept every operator that the script runs on the GPU, and record it or compute its result."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import torch

from ullage.gpu.values.answers import COUNTED, SIZED_BY_READS, Answers, read_by
from ullage.gpu.values.content import BlockContents, Certainty, EmulatedDriver
from ullage.gpu.values.dispatch import PYTHON, Invocation, Watch, tensors_in
from ullage.gpu.values.evaluation import FLOAT_BYTES, Evaluation
from ullage.gpu.values.faults import Faults
from ullage.gpu.values.messages import RankMessages
from ullage.gpu.values.notes import Notes, is_on_card
from ullage.gpu.values.operator_plan import PRODUCTS, OperatorPlan, is_small, plan_of
from ullage.gpu.values.ranks import ranks_in
from ullage.gpu.values.reads import ReadKind, Reads
from ullage.gpu.values.sparse import CONVERSIONS, COUNTED_OF_SPARSE, is_counted
from ullage.gpu.values.waiting import Waiting
from ullage.gpu.values.writes import WRITES_UNSAID, Writes

_SEVERAL: Final = frozenset((tuple, list))
# Their sparse results consist of tensors that ullage already knows.
_KEEPS_PARTS: Final = ("aten::_to_sparse", "aten::_sparse", "aten::sparse_", "aten::_coalesced", "aten::clone")
# The same holds for results in COO format only.
_JOINS_PARTS: Final = ("aten::add", "aten::cat")
# A larger tensor of a collective is data, and not a size or a message.
_MOST_BYTES: Final = 1 << 20
# After these collectives, a tensor's previous values remain plausible, even for a sum of floats.
_UNCHANGED: Final = frozenset(
    ("broadcast_", "barrier", "monitored_barrier_", "send", "recv_", "recv_any_source_", "allreduce_", "reduce_")
)
ValueOf = Callable[[torch.Tensor], tuple[torch.Tensor, Certainty] | None]
Keep = Callable[[torch.Tensor, torch.Tensor, Certainty], None]


class Interception(Watch):
    """Records what operators write to GPU memory, and provides the values that they read from it."""

    def __init__(self, faults: Faults, evaluation: Evaluation, reads: Reads, driver: EmulatedDriver) -> None:
        super().__init__(faults, everything=False)
        self.notes = Notes(evaluation)
        self.messages = RankMessages(self.notes)
        """The messages that ranks send to each other."""
        self.waiting = Waiting(evaluation.seed)
        self._writes = Writes(self.notes, self.waiting, driver)
        self._answers = Answers(self.notes, reads, self.waiting, driver.answer)
        self._reads = reads
        self._answer = driver.answer
        self._handlers: dict[str, Callable[..., Any]] = {
            "aten::_local_scalar_dense": self._answers.scalar,
            "aten::equal": self._answers.equal,
            "aten::lift_fresh": self._writes.made_of_a_list,
            **dict.fromkeys(COUNTED, self._answers.counted),
            **dict.fromkeys(PRODUCTS, self._multiply),
            **dict.fromkeys(COUNTED_OF_SPARSE, self._count_sparse),
            **dict.fromkeys(CONVERSIONS, self._answers.converted),
            **dict.fromkeys(SIZED_BY_READS, self._answers.within),
            **dict.fromkeys(WRITES_UNSAID, self._writes.run_unsaid),
        }

    def handle(self, op: Invocation) -> Any:
        plan = op.plan = plan_of(op.operator)
        arguments = op.arguments
        if self.has_ended or plan.is_composite or op.keyset.has(PYTHON):
            return op.run()
        if plan.written:
            if plan.name == "aten::copy_" and not arguments[0].is_cuda and is_on_card(arguments[1]):
                return self._answers.copied_to_host(op)
            return self._writes.run(op)
        handler = self._handlers.get(plan.name)
        if handler is not None and arguments[0].is_cuda:
            return handler(op)
        return self._run_and_note(op)

    def run_plainly(self, op: Invocation) -> None:
        is_sized = op.operator._schema.name in SIZED_BY_READS
        if is_sized:
            self._answer(1)  # as in `Answers.checks_hold`
        try:
            op.run_plainly()
        finally:
            if is_sized:
                self._answer(None)

    def lose(self, op: Invocation) -> None:
        try:
            plan = op.plan
            touched = (*op.arguments, *op.keywords.values()) if plan.is_foreign else op.written()
            for each in tensors_in((*touched, op.result)):
                if each.is_cuda:
                    self.notes.lose(each)
        except Exception:
            self.notes.clear()
        kind: ReadKind | None = ReadKind.SHAPE
        with suppress(Exception):  # The same error may occur again.
            kind = read_by(op)
        if kind is not None:
            self._reads.note_fault(kind, op.operator._schema.name.partition("::")[2].strip("_"))

    # Products in a backward pass are never recorded, because they decide nothing.
    def _multiply(self, op: Invocation) -> Any:
        result = op.run()
        if result.layout != torch.strided:
            return result if self._answers.is_answering else self._counted_by_library(op.plan, result)
        is_forward = torch._C._current_graph_task_id() == -1
        if is_forward and is_small(op.plan.name, op.arguments, result, FLOAT_BYTES):
            self.notes.product(op, result)
        return result

    def _counted_by_library(self, plan: OperatorPlan, result: torch.Tensor) -> torch.Tensor:
        self._reads.note(ReadKind.SHAPE, plan.name.partition("::")[2].strip("_"), Certainty.UNKNOWN, 8)
        self.notes.forget_parts(result)
        return result

    def _count_sparse(self, op: Invocation) -> Any:
        if is_counted(op.plan.name, op.arguments):
            return self._answers.counted_of_sparse(op)
        return self._multiply(op) if op.plan.name in PRODUCTS else self._run_and_note(op)

    def _run_and_note(self, op: Invocation) -> Any:
        result = op.run()
        notes, plan = self.notes, op.plan
        if plan.is_collective and not plan.name.startswith("symm_mem::"):
            # A functional collective calls one that writes its argument, which was intercepted already.
            note_collective(notes.contents, self.messages, plan.name, op.arguments, notes.held, notes.keep)
            return result
        kind = result.__class__
        if kind is torch.Tensor:
            if result.is_cuda:
                if result.layout == torch.strided:
                    notes.results(op, (result,))
                elif plan.name == "aten::mul" and getattr(op.arguments[1], "layout", None) == torch.sparse_coo:
                    self._counted_by_library(plan, result)
                elif not plan.name.startswith(_KEEPS_PARTS) and plan.name not in _JOINS_PARTS:
                    notes.forget_parts(result)
        elif kind in _SEVERAL and any(is_on_card(each) for each in result):
            notes.results(op, result)
        return result

    def stop(self) -> None:
        """Stop recording operators in all threads, and free the memory of the records."""
        self.has_ended = True
        self.notes.clear()
        self.waiting.renew()


def note_collective(
    contents: BlockContents, messages: RankMessages, name: str, arguments: Sequence[Any], value_of: ValueOf, keep: Keep
) -> None:
    """Record the results of a collective operation between ranks.

    The emulated NCCL behaves as if every rank had sent the same data as this one. If several ranks run, or if one rank
    sends and others receive, the data is exchanged as messages.

    Args:
        contents: the contents of GPU memory.
        messages: the messages between ranks.
        name: the operator's name, such as "c10d::allgather_".
        arguments: the operator's arguments; outputs come before inputs.
        value_of: a function that returns a tensor's values and their certainty; None if they cannot be computed.
        keep: a function that sets a tensor's values.
    """
    short = name.partition("::")[2]
    if not name.startswith("c10d::") or messages.note(name, arguments) or short in _UNCHANGED:
        return
    certainty = Certainty.ALIKE if ranks_in(arguments) > 1 else Certainty.KNOWN
    outputs, inputs = (list(tensors_in([each])) for each in (*arguments[:2], [], [])[:2])
    for number, output in enumerate(outputs):
        sent = inputs[min(number, len(inputs) - 1)] if inputs else None
        held = None
        if sent is not None and sent.is_cuda and max(output.nbytes, sent.nbytes) <= _MOST_BYTES:
            held = value_of(sent)
        if held is not None and (value := _part_of(held[0], output)) is not None:
            keep(output, value, max(held[1], certainty))
        elif output.is_cuda:
            contents.put(contents.block_of(output), None)


def _part_of(value: torch.Tensor, output: torch.Tensor) -> torch.Tensor | None:
    sent, wanted = value.numel(), output.numel()
    flat = value.reshape(-1)
    if wanted == sent:
        return flat.view(output.size())
    if sent and wanted % sent == 0:  # gathered
        return flat.repeat(wanted // sent).view(output.size())
    if wanted and sent and sent % wanted == 0:  # scattered
        rank = torch.distributed.get_rank() % (sent // wanted)
        return flat[rank * wanted : (rank + 1) * wanted].view(output.size())
    return None
