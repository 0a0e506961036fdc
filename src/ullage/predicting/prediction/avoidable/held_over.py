"""Held over: what an earlier pass has made, nothing uses any more, and is still there at the fullest moment.

A block is held over from the end of the pass that used it last. That nothing uses it is seen, not guessed: of a block
that has been let go of, all uses are known. One that is kept to the end of the run may be wanted later; it counts if
pass after pass keeps one more of its kind, and none of them is used in a later pass.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.base.block_role import Role
from ullage.gpu.tracing.journal import Phase
from ullage.predicting.prediction.avoidable.holder_watch import SeenHolder
from ullage.predicting.prediction.avoidable.passes import TrainingPasses
from ullage.predicting.prediction.avoidable.uses import LastUses
from ullage.predicting.prediction.observation.role import Lives
from ullage.training.ownership.holders import BlockHolder
from ullage.training.ownership.holding import HolderKind

_STAYS: Final = frozenset((Role.PARAMETERS, Role.GRADIENTS, Role.OPTIMIZER_STATE, Role.BUFFERS, Role.WORKSPACES))
"""The roles of blocks that are meant to outlive a step."""
_UNREACHABLE: Final = frozenset((HolderKind.GARBAGE, HolderKind.TRACEBACK))
"""Holders that no variable leads to: a block that they keep is not wanted later."""
_PASSES_NEEDED: Final = 2
"""The number of passes that have to keep a block of a kind, where these live to the end of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOverBlock:
    """A block that outlives its last use."""

    number: int
    """The block's number in `Lives`."""
    since: int
    """The entry of the journal after which it could have been let go of."""
    of_pass: int
    """The pass that used it last."""
    is_let_go: bool
    """Whether it was let go of in the run, so that all of its uses are known."""
    holder: BlockHolder


def held_over(
    lives: Lives,
    roles: Sequence[Role],
    uses: LastUses,
    passes: TrainingPasses,
    seen: Iterable[SeenHolder],
    *,
    device: int,
    end: int,
) -> list[HeldOverBlock]:
    """Return the blocks that outlive their last use.

    Args:
        lives: all blocks.
        roles: their roles.
        uses: their uses.
        passes: the run's passes.
        seen: the holders that were seen.
        device: whose blocks are wanted.
        end: the entry at which the run ended, or at which memory ran out for good: what is freed later is unwound.
    """
    holders: defaultdict[int, list[SeenHolder]] = defaultdict(list)
    for one in seen:
        holders[one.address].append(one)
    made_in = passes.at(lives.born)
    found = []
    for number in _candidates(lives, roles, made_in, passes, device).tolist():
        of_pass = int(max(made_in[number], uses.last_pass[number], 1))
        done = int(passes.done[of_pass - 1])
        if done < 0:
            continue
        since = max(done, int(uses.when[number]), int(lives.born[number]))
        died = int(lives.died[number])
        if died <= since + 1:
            continue
        of_address = holders[int(lives.entries["address"][number])]
        holder = next((one.holder for one in of_address if since < one.index <= died), None)
        if holder is None:
            continue
        is_let_go = died < end
        # Used by no pass before the one that used it last; what fills a batch that is made between two is no use.
        is_between = made_in[number] == of_pass - 1 and (of_pass == 1 or lives.born[number] > passes.done[of_pass - 2])
        is_once = uses.first_pass[number] >= of_pass or bool(is_between)
        if is_let_go or (is_once and _is_seen_idle(passes, of_pass)):
            found.append(HeldOverBlock(number=number, since=since, of_pass=of_pass, is_let_go=is_let_go, holder=holder))
    return _without_chance(found, lives)


def _candidates(
    lives: Lives, roles: Sequence[Role], made_in: np.ndarray, passes: TrainingPasses, device: int
) -> np.ndarray:
    """Return the blocks that passes have made and that are neither meant to stay nor an optimizer's scratch.

    The first batch is made before the first pass.
    """
    is_input = np.array([role is Role.INPUTS for role in roles], np.bool_)
    is_made = (
        ((made_in >= 1) | is_input) & (lives.entries["device"] == device) & (lives.entries["phase"] != Phase.OPTIMIZER)
    )
    numbers = np.flatnonzero(is_made)
    numbers = numbers[lives.died[numbers] > passes.done[np.maximum(made_in[numbers], 1) - 1]]
    return np.array([number for number in numbers.tolist() if roles[number] not in _STAYS], np.int64)


def _is_seen_idle(passes: TrainingPasses, of_pass: int) -> bool:
    """Tell whether a whole pass was run after another one."""
    return of_pass < len(passes) and bool(passes.has_stepped[of_pass])


def _without_chance(found: Sequence[HeldOverBlock], lives: Lives) -> list[HeldOverBlock]:
    """Leave out what lives to the end of the run, unless pass after pass keeps such a block, or nobody wants it later.

    Nobody wants garbage, or the variables of a function that failed.
    """
    kept: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
    for block in found:
        kept[_likeness(block, lives)].add(block.of_pass)
    return [
        block
        for block in found
        if block.is_let_go
        or block.holder.kind in _UNREACHABLE
        or block.holder.in_traceback
        or len(kept[_likeness(block, lives)]) >= _PASSES_NEEDED
    ]


def _likeness(block: HeldOverBlock, lives: Lives) -> tuple[int, str]:
    # Not by size: where a free piece is not worth splitting, equal requests get blocks of several sizes.
    return int(lives.entries["stack"][block.number]), block.holder.path
