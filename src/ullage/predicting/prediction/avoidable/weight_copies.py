"""Find modules, dicts and lists that contain a second copy of the trained weights.

The search inspects all live Python objects at the end of the run.
"""

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from ullage.base.block_role import Role
from ullage.predicting.prediction.avoidable.gain import Gains
from ullage.predicting.prediction.avoidable.moment import PeakMoment
from ullage.predicting.prediction.data.avoidable_memory import Avoidable, AvoidableKind
from ullage.training.ownership.holders import BlockHolder, holders_at
from ullage.training.ownership.safe_inspection import is_of, table_of
from ullage.training.ownership.storage import addresses

# Fewer tensors with equal shapes may be a coincidence.
_LEAST_TENSORS: Final = 2
# Gradients that `torch.func.grad` returns, and an optimizer's state, have the shapes of the weights. An activation is
# another block, which had the same address at the peak.
_NOT_COPIES: Final = (Role.GRADIENTS, Role.OPTIMIZER_STATE, Role.ACTIVATIONS)
_Shapes = tuple[torch.Size, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCopy:
    """A module, dict or list whose untrained tensors have the same shapes as the parameters of a trained model."""

    what: str
    """A description of the object that contains the copied weights: "a module", "a dict" or "a list"."""
    addresses: tuple[int, ...]
    holder: BlockHolder | None


def weight_copies(trained: Iterable[Tensor]) -> list[WeightCopy]:
    """Return the copies of the trained weights in this process, such as a second model with averaged weights.

    Args:
        trained: the parameters of all optimizers.
    """
    ids = {id(one) for one in trained}
    modules = [one for one in gc.get_objects() if is_of(one, (nn.Module,))]
    inner = {id(child) for module in modules for child in table_of(module, "_modules").values()}
    tops = [list(nn.Module.parameters(module)) for module in modules if id(module) not in inner]
    shapes = {_shapes(one) for one in tops if any(id(each) in ids for each in one)}
    shapes = {one for one in shapes if len(one) >= _LEAST_TENSORS}
    found: list[WeightCopy] = []
    seen: set[int] = set(addresses(each for one in tops if any(id(part) in ids for part in one) for each in one))
    candidates = [("a module", one) for one in tops] + list(_containers())
    for what, tensors in candidates:
        if _shapes(tensors) not in shapes:
            continue
        where = addresses(tensors)
        if not where or not seen.isdisjoint(where):
            continue
        seen.update(where)
        holders = holders_at(where)
        holder = next((holders[address] for address in where if address in holders), None)
        found.append(WeightCopy(what=what, addresses=tuple(where), holder=holder))
    return found


def _containers() -> Iterator[tuple[str, list[Tensor]]]:
    for one in gc.get_objects():
        kind = type(one)
        if kind is dict or (kind is not list and is_of(one, (dict,))):
            values: Sequence[Any] = list(dict.values(one))
            what = "a dict"
        elif kind is list:
            values, what = one, "a list"
        else:
            continue
        tensors = [value for value in values if issubclass(type(value), Tensor)]
        if len(tensors) >= _LEAST_TENSORS and len(tensors) == len(values):
            yield what, tensors


def _shapes(tensors: Sequence[Tensor]) -> _Shapes:
    return tuple(Tensor.size(one) for one in tensors)


def rows_of_copies(copies: Sequence[WeightCopy], moment: PeakMoment, gains: Gains) -> list[Avoidable]:
    """Return one report row for each copy of the weights that is alive at the memory peak."""
    lives, roles = moment.memory.lives, moment.memory.roles
    alive = [block for block in moment.unnamed() if roles[block] not in _NOT_COPIES]
    by_address = {int(lives.entries["address"][block]): block for block in alive}
    rows = []
    for copy in copies:
        blocks = [by_address[address] for address in copy.addresses if address in by_address]
        blocks = list(dict.fromkeys(blocks))
        if not moment.is_worth(moment.size_of(blocks)):
            continue
        holder = copy.holder
        names = [holder.path, *holder.others] if holder is not None else []
        rows.append(
            moment.row(
                AvoidableKind.SECOND_COPY_OF_WEIGHTS,
                blocks,
                gains.without(blocks),
                names=names,
                evidence=(
                    f"{copy.what} has {len(copy.addresses)} tensors with the shapes of the trained model's parameters, "
                    "in the same order, and no optimizer trains them"
                ),
                remedy="keep the copy on the host (.cpu()), and move it to the GPU only when it is used",
                module="",
            )
        )
    return rows
