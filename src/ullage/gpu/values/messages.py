"""Send messages between emulated ranks. A message has integers, such as tensor sizes, or a pickled object.

Floating-point numbers are not sent, because no allocation depends on them. A message is received only when its value is
read.
"""

import ctypes
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch

from ullage.base.units import KIB, MIB
from ullage.gpu.values.content import BlockContent, BlockContents, Certainty, Operand, OperatorCall, TensorView
from ullage.gpu.values.dispatch import ONLY
from ullage.gpu.values.evaluation import EvaluationError
from ullage.gpu.values.notes import Notes
from ullage.gpu.values.ranks import Post, StorePost, Team, is_called_from_torch_distributed, operation_of, reduced

# A larger tensor of integers is not sent to other ranks.
_MOST_BYTES: Final = 16 * MIB
# A larger tensor of random integers is not sent, because its numbers are not sizes.
_MOST_DRAWN_BYTES: Final = 64 * KIB
# A float tensor of at most this size counts as a flag or a count, if its values are known.
_MOST_COUNTED_BYTES: Final = 4 * KIB
_NOTHING: Final = b""


class _Deferred:
    _overloadname = ""
    call: OperatorCall | None = None

    def _know(self, certainty: Certainty) -> None:
        for target in self.call.targets if self.call is not None else ():
            if (content := target.content()) is not None:
                content.certainty = max(content.certainty, certainty)


@dataclass(eq=False, repr=False)  # The awaited data may be large, so leave it out of repr().
class _Received(_Deferred):
    _schema = SimpleNamespace(name="ullage::received")

    messages: "RankMessages"
    awaited: "_Awaited"
    own: Operand | None

    def __call__(self, out: torch.Tensor) -> torch.Tensor:
        messages = self.messages
        found = messages.kept_own(self.own) if self.own is not None else None
        if found is None:
            found = messages.taken(self.awaited, out.dtype)
        value, certainty = found
        self._know(certainty)
        if value.dtype == torch.uint8 and value.numel() == out.numel() * out.itemsize:
            value = value.view(out.dtype)
        if value.numel() != out.numel():
            raise EvaluationError(f"a message has {value.numel()} numbers; expected {out.numel()}")
        return out.copy_(value.view(out.shape))


@dataclass(eq=False, repr=False)
class _MadeOfAlike(_Deferred):
    _schema = SimpleNamespace(name="ullage::made_of_alike")

    notes: Notes
    own: Operand
    ranks: int
    operation: str

    def __call__(self, out: torch.Tensor) -> torch.Tensor:
        value = self.notes.evaluation.value_of(self.own)
        self._know(self.notes.evaluation.certainty_of(self.own))
        return out.copy_(_of_alike(value, self.ranks, self.operation).view(out.shape))


@dataclass(frozen=True, slots=True)
class _Awaited:
    keys: Sequence[tuple[str, int]]
    instead: bytes = _NOTHING
    operation: str = ""


class RankMessages:
    """The messages that this rank sends and receives.

    They are sent when a torch.distributed operator runs, and received when their values are read.
    """

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self.post: Post = StorePost()
        """The channel through which this rank sends messages."""
        self.are_used = False
        """Whether this rank has sent or received any message."""
        self.largest_not_asked = 0
        """The number of ranks in the largest process group of which ullage ran only this rank.

        In such a group, this rank used its own numbers as the numbers of the other ranks.
        """
        self._counts: Counter[tuple[str, str]] = Counter()
        self._received: weakref.WeakSet[BlockContent] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._handlers: dict[str, Callable[..., bool]] = {
            "send": self._sent,
            "recv_": self._awaited,
            "broadcast_": self._broadcast,
            "scatter_": self._scattered,
            "allgather_": self._gathered_by_all,
            "_allgather_base_": self._gathered_by_all,
            "allgather_into_tensor_coalesced_": self._all_gathered_by_all,
            "gather_": self._gathered,
            "alltoall_base_": self._exchanged,
            "alltoall_": self._exchanged_lists,
            "allreduce_": self._reduced_by_all,
            "allreduce_coalesced_": self._reduced_by_all,
            "reduce_": self._reduced,
        }

    def note(self, name: str, arguments: Sequence[Any]) -> bool:
        """Send and receive the messages for an operator such as "c10d::send".

        Return False if the operator needs no messages.
        """
        handler = self._handlers.get(name.partition("::")[2])
        if handler is None or len(arguments) < 3:
            return False
        try:
            return handler(*arguments)
        except (RuntimeError, NotImplementedError, AttributeError, KeyError):  # not one of PyTorch's process groups
            return False

    def end(self) -> None:
        """Tell the other ranks that this rank sends no more messages."""
        if self.are_used and isinstance(self.post, StorePost):
            with suppress(RuntimeError, ValueError):  # The script has already left its process group.
                self.post.end()

    # ---- operators

    def _sent(self, tensors: Sequence[torch.Tensor], group: Any, destination: int, tag: int) -> bool:
        team = Team(group)
        key = self._key(team, f"{team.rank}>{destination}#{tag}")
        for place, each in enumerate(tensors):
            self._give(each, f"{key}.{place}")
        return True

    def _awaited(self, tensors: Sequence[torch.Tensor], group: Any, source: int, tag: int) -> bool:
        team = Team(group)
        key = self._key(team, f"{source}>{team.rank}#{tag}")
        for place, each in enumerate(tensors):
            self._take(each, _Awaited([(f"{key}.{place}", team.ranks[source])]))
        return True

    def _broadcast(self, tensors: Sequence[torch.Tensor], group: Any, root: int, *rest: Any) -> bool:
        team = Team(group)
        key = self._key(team, "broadcast")
        for place, each in enumerate(tensors):
            if team.rank == root:
                self._give(each, f"{key}.{place}")
            else:
                self._take(each, _Awaited([(f"{key}.{place}", team.ranks[root])]), may_keep=True)
        return True

    def _scattered(self, outputs: Any, inputs: Any, group: Any, root: int, *rest: Any) -> bool:
        team = Team(group)
        key = self._key(team, "scatter")
        if team.rank != root:
            self._take(outputs[0], _Awaited([(f"{key}.{team.rank}", team.ranks[root])]))
            return True
        for rank, each in enumerate(inputs[0]):
            if rank == root and self._is_ours(each):
                self._copy(outputs[0], each, Certainty.KNOWN)
            else:
                self._give(each, f"{key}.{rank}")
        return True

    def _gathered_by_all(self, outputs: Any, inputs: Any, group: Any, *rest: Any) -> bool:
        team = Team(group)
        sent = inputs[0] if isinstance(inputs, list | tuple) else inputs
        whole = outputs if isinstance(outputs, torch.Tensor) else outputs[0]
        if not self._are_ours(sent, whole) or not self._asks_all(team):
            return False
        key = self._key(team, "allgather")
        own = self._give(sent, f"{key}.{team.rank}")
        keys = [(f"{key}.{rank}", team.ranks[rank]) for rank in range(team.size)]
        if isinstance(whole, torch.Tensor):
            self._take(whole, _Awaited(keys, own))
        else:
            for each, one in zip(whole, keys, strict=True):
                self._take(each, _Awaited([one], own))
        return True

    def _all_gathered_by_all(self, outputs: Any, inputs: Any, group: Any, *rest: Any) -> bool:
        if not self._are_ours(*inputs, *outputs) or not self._asks_all(Team(group)):
            return False
        for into, each in zip(outputs, inputs, strict=True):
            self._gathered_by_all(into, each, group)
        return True

    def _gathered(self, outputs: Any, inputs: Any, group: Any, root: int, *rest: Any) -> bool:
        team = Team(group)
        (sent,) = inputs
        into = outputs[0] if team.rank == root and outputs else []
        if not self._are_ours(sent) or not self._asks_all(team):
            if self.post.is_alone and not sent.is_cuda:  # PyTorch's fake process group does not write to CPU tensors.
                for each in into:
                    self._copy(each, sent, Certainty.ALIKE)
            return False
        key = self._key(team, "gather")
        own = self._give(sent, f"{key}.{team.rank}")
        for rank, each in enumerate(into):
            self._take(each, _Awaited([(f"{key}.{rank}", team.ranks[rank])], own))
        return True

    def _reduced_by_all(self, tensors: Sequence[torch.Tensor], group: Any, operation: Any, *rest: Any) -> bool:
        return self._reduce(tensors, Team(group), operation_of(operation), None)

    def _reduced(self, tensors: Sequence[torch.Tensor], group: Any, operation: Any, root: int, *rest: Any) -> bool:
        return self._reduce(tensors, Team(group), operation_of(operation), root)

    def _reduce(self, tensors: Sequence[torch.Tensor], team: Team, operation: str, root: int | None) -> bool:
        takes = root in (None, team.rank)
        for tensor in tensors if team.size > 1 else ():
            if not self._are_ours(tensor):
                if takes and tensor.is_floating_point() and self._is_small_and_known(tensor):
                    self._make_of_alike(tensor, team.size, operation)
            elif not operation or not self._asks_all(team):
                if takes:
                    self._make_of_alike(tensor, team.size, operation)
            else:
                key = self._key(team, "reduce")
                own = self._give(tensor, f"{key}.{team.rank}")
                if takes:
                    keys = [(f"{key}.{rank}", team.ranks[rank]) for rank in range(team.size)]
                    self._take(tensor, _Awaited(keys, own, operation))
        return True

    def _exchanged(self, output: Any, sent: Any, group: Any, sizes: Any, sent_sizes: Any, *rest: Any) -> bool:
        team = Team(group)
        if not self._is_of_our_kind(sent):
            return False
        parts = sent.split(list(sent_sizes) or sent.size(0) // team.size) if sent.numel() else [sent] * team.size
        if not self._asks_all(team):
            self._copy(output, parts[team.rank], Certainty.ALIKE, team.size)
            return True
        key = self._key(team, "alltoall")
        for rank, each in enumerate(parts):
            self._give(each, f"{key}.{team.rank}>{rank}")
        wanted = list(sizes) or [output.numel()] * team.size
        keys = [(f"{key}.{rank}>{team.rank}", team.ranks[rank]) for rank in range(team.size) if wanted[rank]]
        self._take(output, _Awaited(keys))
        return True

    def _exchanged_lists(self, outputs: Any, inputs: Any, group: Any, *rest: Any) -> bool:
        team = Team(group)
        if not self._is_of_our_kind(inputs[0]):
            return False
        asks_all = self._asks_all(team)
        key = self._key(team, "alltoall")
        for rank, (output, sent) in enumerate(zip(outputs, inputs, strict=True)):
            if not asks_all:
                self._copy(output, inputs[team.rank], Certainty.KNOWN if rank == team.rank else Certainty.ALIKE)
            else:
                self._give(sent, f"{key}.{team.rank}>{rank}")
                self._take(output, _Awaited([(f"{key}.{rank}>{team.rank}", team.ranks[rank])]))
        return True

    # ---- one tensor

    # DDP compares the shapes of its parameters with a gather; these numbers decide nothing.
    def _asks_all(self, team: Team) -> bool:
        if team.size <= self.post.largest_team:
            return True
        if team.size > self.largest_not_asked and is_called_from_torch_distributed():
            self.largest_not_asked = team.size if team.size > 1 else 0
        return False

    def _key(self, team: Team, kind: str) -> str:
        with self._lock:
            number = self._counts[team.name, kind]
            self._counts[team.name, kind] += 1
        return f"ullage/{team.name}/{kind}/{number}"

    def _give(self, tensor: torch.Tensor, key: str) -> bytes:
        if not self._is_of_our_kind(tensor) or not tensor.nbytes:
            return _NOTHING
        self.are_used = True
        message, held = _NOTHING, None
        if tensor.nbytes <= _MOST_BYTES:
            held = self._notes.held(tensor) if tensor.is_cuda else (tensor, Certainty.KNOWN)
        if held is not None:
            value, certainty = held
            if certainty <= Certainty.ALIKE or (certainty == Certainty.DRAWN and tensor.nbytes <= _MOST_DRAWN_BYTES):
                message = bytes([certainty]) + _bytes_of(value)
        self.post.send(key, message)
        return message

    def _take(self, tensor: torch.Tensor, awaited: _Awaited, *, may_keep: bool = False) -> None:
        if not self._is_ours(tensor):
            if tensor.is_cuda and tensor.nbytes > _MOST_BYTES:
                self._forget(tensor)
            return
        self.are_used = True
        if not tensor.is_cuda:
            with torch._C._ExcludeDispatchKeyGuard(ONLY), torch.no_grad(), suppress(EvaluationError):
                _Received(self, awaited, None)(tensor)
            return
        own: Operand = self._notes.operand(tensor)
        is_kept = may_keep and self.post.is_alone and own.content not in self._received
        content = self._put(tensor, _Received(self, awaited, own if is_kept else None), Certainty.KNOWN)
        if content is not None:
            self._received.add(content)

    def _copy(self, output: torch.Tensor, sent: torch.Tensor, certainty: Certainty, times: int = 1) -> None:
        if not output.is_cuda:
            with torch._C._ExcludeDispatchKeyGuard(ONLY), torch.no_grad():
                output.copy_(sent.reshape(-1).repeat(times).view(output.size()))
            return
        held = self._notes.held(sent)
        if held is None or held[0].numel() * times != output.numel():
            self._forget(output)
            return
        with torch._C._ExcludeDispatchKeyGuard(ONLY):
            value = held[0].reshape(-1).repeat(times).view(output.size())
        self._notes.keep(output, value, max(held[1], certainty))

    def _make_of_alike(self, tensor: torch.Tensor, ranks: int, operation: str) -> None:
        if tensor.is_cuda:
            notes = self._notes
            own: Operand = notes.operand(tensor)
            certainty = max(own.content.certainty, Certainty.ALIKE)
            self._put(tensor, _MadeOfAlike(notes, own, ranks, operation), certainty, own.content.depth + 1)
            return
        with torch._C._ExcludeDispatchKeyGuard(ONLY), torch.no_grad():
            tensor.copy_(_of_alike(tensor, ranks, operation))

    def _put(self, tensor: torch.Tensor, operation: Any, certainty: Certainty, depth: int = 1) -> BlockContent | None:
        contents: BlockContents = self._notes.contents
        before = self._notes.operand(tensor).content
        call = operation.call = OperatorCall(operation, [None], {}, is_random=False)
        base = before if TensorView(tensor).bytes < before.bytes else None
        block = contents.block_of(tensor)
        self._notes.put(block, tensor, call, certainty, depth, "0", base, base_counts=False)
        return contents.get(block)

    def _forget(self, tensor: torch.Tensor) -> None:
        contents: BlockContents = self._notes.contents
        contents.put(contents.block_of(tensor), None)

    # Gradients and losses are not sent, because they are random values that stay plausible.
    def _is_small_and_known(self, tensor: torch.Tensor) -> bool:
        if tensor.nbytes > _MOST_COUNTED_BYTES or tensor.layout != torch.strided:
            return False
        return self._notes.operand(tensor).content.certainty < Certainty.DRAWN if tensor.is_cuda else self.post.is_alone

    def _are_ours(self, *tensors: Any) -> bool:
        return all(self._are_ours(*each) if isinstance(each, list | tuple) else self._is_ours(each) for each in tensors)

    def _is_ours(self, tensor: torch.Tensor) -> bool:
        return self._is_of_our_kind(tensor) and 0 < tensor.nbytes <= _MOST_BYTES

    # If all ranks run, a real Gloo process group sends the CPU tensors.
    def _is_of_our_kind(self, tensor: Any) -> bool:
        return _is_told(tensor) and (tensor.is_cuda or self.post.is_alone)

    # ---- received values

    def kept_own(self, own: Operand) -> tuple[torch.Tensor, Certainty] | None:
        """Return this rank's values of a broadcast tensor, or None if the tensor may be only a receive buffer.

        Scripts often initialise a receive buffer with 0 or -1. So a single number, or equal numbers, count as a receive
        buffer.
        """
        if own.content.is_unwritten or own.content.certainty == Certainty.UNKNOWN:
            return None
        value = self._notes.evaluation.value_of(own)
        certainty = self._notes.evaluation.certainty_of(own)
        differ = value.numel() > 1 and bool((value != value.reshape(-1)[0]).any())
        return (value, certainty) if certainty < Certainty.UNKNOWN and differ else None

    def taken(self, awaited: _Awaited, dtype: torch.dtype) -> tuple[torch.Tensor, Certainty]:
        """Wait for messages from other ranks, and return their values and certainty.

        Raises:
            EvaluationError: a message did not arrive, or its values are unknown.
        """
        certainty = Certainty.KNOWN
        whole = []
        for key, source in awaited.keys:
            try:
                message = self.post.receive(key, source)
            except (RuntimeError, OSError) as error:  # The store is gone, or nobody has written the key.
                raise EvaluationError(str(error)) from error
            if not message and awaited.instead:
                message, certainty = awaited.instead, max(certainty, Certainty.ALIKE)
            if not message:
                raise EvaluationError(f"rank {source} sent no values")
            certainty = max(certainty, Certainty(message[0]))
            whole.append(message[1:])
        found = torch.frombuffer(bytearray(b"".join(whole)), dtype=torch.uint8)
        if awaited.operation:
            found = reduced(found.view(dtype).view(len(whole), -1), awaited.operation)
        return found, certainty


# Integers and booleans may determine the size of an allocation.
def _is_told(tensor: Any) -> bool:
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        return False
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _of_alike(value: torch.Tensor, ranks: int, operation: str) -> torch.Tensor:
    return reduced(value.expand(ranks, *value.size()), operation) if operation else value


def _bytes_of(value: torch.Tensor) -> bytes:
    with torch._C._ExcludeDispatchKeyGuard(ONLY):
        whole = value.detach().contiguous()
    return ctypes.string_at(whole.data_ptr(), whole.numel() * whole.itemsize)
