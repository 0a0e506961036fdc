"""What collectives leave in a rank's tensors, where every rank has sent what this one has."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from ullage.values.content import Contents

_UNCHANGED: Final = ("broadcast_", "barrier", "monitored_barrier_", "send", "recv_")


def note_collective(contents: Contents, name: str, arguments: Sequence[Any]) -> None:
    """Say what a collective has written. The emulated NCCL answers as if every rank had sent what this one did."""
    short = name.partition("::")[2]
    if not name.startswith("c10d::") or short in _UNCHANGED:
        return
    if short == "allgather_" and len(arguments) > 1:
        for outputs, sent in zip(arguments[0], arguments[1], strict=False):
            for output in outputs:
                _is_copy(contents, output, sent)
        return
    if short == "allreduce_":  # sums of floats stay plausible; whole numbers are those of one rank
        return
    for argument in arguments:
        for each in argument if isinstance(argument, list | tuple) else (argument,):
            if isinstance(each, torch.Tensor) and each.is_cuda:
                contents.put(contents.block_of(each), None)


def _is_copy(contents: Contents, output: torch.Tensor, sent: torch.Tensor) -> None:
    if not output.is_cuda:
        return
    block = contents.block_of(output)
    is_alike = sent.is_cuda and contents.block_of(sent)[1] == block[1]
    contents.put(block, contents.get(contents.block_of(sent)) if is_alike else None)
