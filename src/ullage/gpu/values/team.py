"""The ranks of a process group."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch


class Team:
    """The ranks of a process group, as all of them name it."""

    def __init__(self, group: Any) -> None:
        distributed = torch.distributed.distributed_c10d
        found = _group_of(group)
        self.rank: int = found.rank()
        self.size: int = found.size()
        self.ranks: list[int] = distributed.get_process_group_ranks(found)
        self.name = f"{found.group_name}:{','.join(map(str, self.ranks))}"


def ranks_in(arguments: Sequence[Any]) -> int:
    """Return how many ranks the process group has that is among an operator's arguments; 1 where none is."""
    for each in arguments:
        with suppress(AttributeError, RuntimeError, TypeError):
            if not isinstance(each, torch.Tensor | list | tuple):
                return int(_group_of(each).size())
    return 1


def _group_of(boxed: Any) -> Any:
    group = torch.distributed.ProcessGroup
    return boxed if isinstance(boxed, group) else group.unbox(boxed)
