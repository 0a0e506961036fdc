"""What collectives leave in a rank's tensors, where every rank has sent what this one has."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from ullage.gpu.values.content import BlockContents, Certainty
from ullage.gpu.values.messages import RankMessages, ranks_in

_MOST_BYTES: Final = 1 << 20
"""Larger ones carry data, not sizes and messages."""
_UNCHANGED: Final = frozenset(
    ("broadcast_", "barrier", "monitored_barrier_", "send", "recv_", "recv_any_source_", "allreduce_", "reduce_")
)
"""Collectives that leave a rank what it has: sums of floats stay plausible."""
ValueOf = Callable[[torch.Tensor], tuple[torch.Tensor, Certainty] | None]
Keep = Callable[[torch.Tensor, torch.Tensor, Certainty], None]


def note_collective(
    contents: BlockContents, messages: RankMessages, name: str, arguments: Sequence[Any], value_of: ValueOf, keep: Keep
) -> None:
    """Say what a collective has written. The emulated NCCL answers as if every rank had sent what this one did.

    What ranks tell each other is a message: with several that run, or where one rank sends and others receive.

    Args:
        contents: what the card's memory holds.
        messages: what ranks tell each other.
        name: the operator's, such as "c10d::allgather_".
        arguments: its arguments; outputs come before inputs.
        value_of: returns what a tensor holds and how well that is known; None if it cannot be had.
        keep: says what a tensor holds from now on.
    """
    short = name.partition("::")[2]
    if not name.startswith("c10d::") or messages.note(name, arguments) or short in _UNCHANGED:
        return
    certainty = Certainty.ALIKE if ranks_in(arguments) > 1 else Certainty.KNOWN
    outputs, inputs = (_tensors(each) for each in (*arguments[:2], [], [])[:2])
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
    """Return what one rank's tensor becomes in another of as many, fewer or more elements."""
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


def _tensors(argument: Any) -> list[torch.Tensor]:
    if isinstance(argument, torch.Tensor):
        return [argument]
    if isinstance(argument, list | tuple):
        return [each for part in argument for each in _tensors(part)]
    return []
