"""Find memory that the forward pass takes for the same result several times, or for copies of expanded tensors."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Final

import numpy as np

from ullage.base.block_role import Role
from ullage.gpu.tracing.journal import Phase
from ullage.gpu.tracing.source import Line
from ullage.predicting.prediction.avoidable.gain import Gains
from ullage.predicting.prediction.avoidable.moment import PeakMoment
from ullage.predicting.prediction.avoidable.uses import ComputedContents
from ullage.predicting.prediction.data.avoidable_memory import Avoidable, AvoidableKind

_MAY_GO: Final = frozenset((Role.ACTIVATIONS, Role.TEMPORARIES, Role.INPUTS, Role.UNKNOWN))


def repeated_results(moment: PeakMoment, gains: Gains, contents: ComputedContents) -> list[Avoidable]:
    """Return a report row for each source line that computes a result again while an equal one is alive.

    Args:
        moment: the time of the memory peak.
        gains: the peaks of the run with other frees.
        contents: the content of each block.
    """
    first_of = _repeated(moment, contents)
    lives = moment.memory.lives
    by_line: defaultdict[Line | None, list[int]] = defaultdict(list)
    for block in first_of:
        by_line[moment.line_of(block)].append(block)
    rows = []
    unnamed = set(moment.unnamed())
    for every in by_line.values():
        blocks = [block for block in every if block in unnamed]
        if not blocks or not moment.is_worth(moment.size_of(blocks)):
            continue
        ends: dict[int, int] = {}
        for block in every:
            first, died = first_of[block], int(lives.died[block])
            if died > max(int(lives.died[first]), ends.get(first, 0) + 1):
                ends[first] = died - 1
        results = len({first_of[block] for block in blocks})
        rows.append(
            moment.row(
                AvoidableKind.REPEATED_RESULTS,
                blocks,
                gains.changed(ends, every),
                evidence=(
                    f"{len(blocks)} blocks hold the same as {_counted(results)}, because the forward pass applies the "
                    "same operators to the same tensors again"
                ),
                remedy=(
                    "compute the result once and pass it on: for example, convert a bool attention mask to a float "
                    "mask before the layers, and cast, transpose or copy a tensor before several layers use it"
                ),
            )
        )
    return rows


def expanded_copies(moment: PeakMoment, gains: Gains, copies: Collection[int]) -> list[Avoidable]:
    """Return a report row for each source line whose operator copies an expanded tensor.

    Args:
        moment: the time of the memory peak.
        gains: the peaks of the run without some blocks.
        copies: the blocks to which an expanded tensor was copied.
    """
    by_line: defaultdict[Line | None, list[int]] = defaultdict(list)
    for block in _of_forward(moment, copies):
        by_line[moment.line_of(block)].append(block)
    unnamed = set(moment.unnamed())
    rows = []
    for every in by_line.values():
        blocks = [block for block in every if block in unnamed]
        if blocks and moment.is_worth(moment.size_of(blocks)):
            rows.append(
                moment.row(
                    AvoidableKind.EXPANDED_COPIES,
                    blocks,
                    gains.without(every),
                    evidence=f"{len(blocks)} blocks repeat the elements of an expanded tensor",
                    remedy=(
                        "use an operator that does not copy: for example torch.einsum in place of @ with a batched "
                        "weight, and enable_gqa=True of scaled_dot_product_attention in place of repeated keys"
                    ),
                )
            )
    return rows


# Maps each block that repeats the content of an earlier block, which is still alive, to that block.
def _repeated(moment: PeakMoment, contents: ComputedContents) -> dict[int, int]:
    lives, roles = moment.memory.lives, moment.memory.roles
    is_of_pass = lives.entries["phase"] == Phase.FORWARD
    kept: dict[int, int] = {}
    found = {}
    blocks = _of_forward(moment, range(len(lives.born)))
    for block in sorted(blocks, key=lambda each: int(lives.born[each])):
        # Zeros outside of a forward pass may be read before the script overwrites them.
        if contents.is_plain[block] and not (is_of_pass[block] and roles[block] is Role.ACTIVATIONS):
            continue
        first = kept.setdefault(contents.number[block], block)
        if first == block:
            continue
        if lives.died[first] > lives.born[block] and lives.entries["size"][first] == lives.entries["size"][block]:
            found[block] = first
        else:
            kept[contents.number[block]] = block
    return found


def _of_forward(moment: PeakMoment, blocks: Iterable[int]) -> list[int]:
    lives, roles = moment.memory.lives, moment.memory.roles
    is_later = np.isin(lives.entries["phase"], (Phase.BACKWARD, Phase.OPTIMIZER))
    wanted = set(np.flatnonzero(~is_later & (lives.entries["device"] == moment.memory.device)).tolist())
    return [block for block in blocks if block in wanted and roles[block] in _MAY_GO]


def _counted(results: int) -> str:
    return "another block" if results == 1 else f"{results} others"
