"""Find memory that a training script could avoid: the optimizer's temporary tensors, and gradients after their last
use.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from ullage.base.block_role import Role
from ullage.gpu.tracing.journal import Phase
from ullage.predicting.prediction.avoidable.gain import Gains
from ullage.predicting.prediction.avoidable.moment import PeakMoment
from ullage.predicting.prediction.avoidable.uses import LastUses, TrainingPasses, UseTable
from ullage.predicting.prediction.data.avoidable_memory import Avoidable, AvoidableKind

_ZERO: Final = ("aten::zero_", "aten::_foreach_zero_")
# The operation that `zero_` itself calls.
_FILL: Final = "aten::fill_"
_ADD: Final = ("aten::add_", "aten::_foreach_add_")
# torch.optim functions that process all parameters in lists, such as `_multi_tensor_adam`, begin with this prefix.
_LISTS: Final = "_multi_tensor_"
# The smallest fraction of the gradients that must have a copy in another data type.
_HALF: Final = 0.5


def optimizer_temporaries(moment: PeakMoment, gains: Gains) -> list[Avoidable]:
    """Return the report rows about temporary tensors that the optimizer allocates for all parameters at once."""
    lives, roles = moment.memory.lives, moment.memory.roles
    in_optimizer = lives.entries["phase"] == Phase.OPTIMIZER
    made = [int(block) for block in np.flatnonzero(in_optimizer) if roles[block] is Role.TEMPORARIES]
    alive = [block for block in moment.unnamed(role=Role.TEMPORARIES) if in_optimizer[block]]
    lists = {line.function for block in alive for line in moment.stack_of(block) if line.function.startswith(_LISTS)}
    if not lists or not moment.is_worth(moment.size_of(alive)):
        return []
    named = ", ".join(sorted(lists))
    return [
        moment.row(
            AvoidableKind.OPTIMIZER_TEMPORARIES,
            alive,
            gains.without(made),
            evidence=f"the peak is in the optimizer's step, where {named} holds {len(alive)} temporary results at once",
            remedy="create the optimizer with fused=True (no temporaries), or foreach=False (one temporary at a time)",
            module="",
        )
    ]


def stale_gradients(
    moment: PeakMoment, gains: Gains, table: UseTable, uses: LastUses, passes: TrainingPasses, end: int
) -> list[Avoidable]:
    """Return the report rows about gradients that stay allocated after the optimizer has used them."""
    number = int(passes.at(np.array([moment.index]))[0])
    steps = [step for step in moment.step_ends if step < moment.index]
    if not steps or not number:
        return []
    old = [
        block
        for block in moment.unnamed(role=Role.GRADIENTS)
        if moment.memory.lives.born[block] < steps[-1] and passes.begins[number - 1] > steps[-1]
    ]
    lives = moment.memory.lives
    unused = {
        int(block): max(int(uses.when[block]), int(step))
        for block in np.flatnonzero([role is Role.GRADIENTS for role in moment.memory.roles])
        for step in moment.step_ends
        if lives.born[block] < step and uses.when[block] <= step + 1 < lives.died[block] < end
    }
    let_go = [block for block in old if block in unused]
    zeroed = _zeroed(old, table, moment.index)
    if moment.is_worth(moment.size_of(let_go)):
        evidence = (
            "the optimizer has used these gradients, and they are freed after this forward pass without another use"
        )
        remedy = "call zero_grad() right after the optimizer's step, before the next forward pass"
        peaks = gains.with_ends(unused)
        blocks = let_go
    elif moment.is_worth(moment.size_of(zeroed)):
        evidence = (
            "these gradients were set to zero after the optimizer's step, and the backward pass adds to the zeros"
        )
        remedy = "call zero_grad() with set_to_none=True (the default), or set .grad to None"
        peaks = gains.with_ends(_without_zeros(table, moment))
        blocks = zeroed
    else:
        return []
    return [moment.row(AvoidableKind.GRADIENTS_KEPT_ZEROED, blocks, peaks, evidence=evidence, remedy=remedy, module="")]


def _zeroed(blocks: list[int], table: UseTable, moment: int) -> list[int]:
    is_zero, is_fill = table.of(*_ZERO), table.of(_FILL)
    zeroed: dict[int, int] = {}  # for each block, the time when it was set to zero
    for at in np.flatnonzero((table.when <= moment) & np.isin(table.block, blocks)).tolist():
        block, when = int(table.block[at]), int(table.when[at])
        if is_zero[at]:
            zeroed[block] = when
        elif not (is_fill[at] and zeroed.get(block) == when):
            zeroed.pop(block, None)
    return [block for block in blocks if block in zeroed]


# The tensor that the backward pass adds to a zeroed gradient would become the gradient.
def _without_zeros(table: UseTable, moment: PeakMoment) -> Mapping[int, int]:
    lives, roles = moment.memory.lives, moment.memory.roles
    is_zero, is_add = table.of(*_ZERO), table.of(*_ADD)
    ends: dict[int, int] = {}
    current: dict[int, int] = {}  # for the first block of a gradient, the block that has replaced it
    for at in np.flatnonzero(is_zero | is_add).tolist():
        block = int(table.block[at])
        if roles[block] is not Role.GRADIENTS:
            continue
        if is_zero[at]:
            ends[current.get(block, block)] = int(table.when[at])
            current[block] = -1
        elif current.get(block) == -1:
            added = int(table.block[at + 1]) if at + 1 < len(table.block) else -1
            if added >= 0 and table.when[at + 1] == table.when[at] and added != block:
                current[block] = added
                ends[added] = int(lives.died[block])
    ends.pop(-1, None)
    return ends


def gradients_beside_copies(moment: PeakMoment, gains: Gains, uses: LastUses) -> list[Avoidable]:
    """Return the report rows about half-precision gradients that stay allocated although FP32 copies of them exist."""
    lives = moment.memory.lives
    alive = moment.unnamed(role=Role.GRADIENTS)
    sizes = moment.memory.requests.bytes_by_index
    by_size: Counter[int] = Counter(sizes.get(int(lives.born[block]), 0) for block in alive)
    small = []
    for block in sorted(alive, key=lambda one: int(lives.born[one])):
        size = sizes.get(int(lives.born[block]), 0)
        if by_size[2 * size] > 0 and uses.when[block] <= moment.index:
            by_size[2 * size] -= 1
            by_size[size] -= 1
            small.append(block)
    total = moment.size_of(alive)
    if not moment.is_worth(moment.size_of(small)) or 3 * moment.size_of(small) < _HALF * total:
        return []
    halves = {sizes.get(int(lives.born[block]), 0) for block in small}
    every = [  # gradients of all steps
        block
        for block, role in enumerate(moment.memory.roles)
        if role is Role.GRADIENTS and sizes.get(int(lives.born[block]), 0) in halves
    ]
    return [
        moment.row(
            AvoidableKind.GRADIENTS_BESIDE_COPIES,
            small,
            gains.with_ends({block: max(int(uses.when[block]), int(lives.born[block])) for block in every}),
            evidence=f"each of these {len(small)} gradients has a copy of twice its size, and is not used again",
            remedy="free each gradient when it has been copied: set .grad to None parameter by parameter",
            module="",
        )
    ]
