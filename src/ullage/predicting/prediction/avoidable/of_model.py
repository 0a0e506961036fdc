"""Find memory that a model could avoid: logits, attention scores and activations saved for backward."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from ullage.base.block_role import Role
from ullage.gpu.tracing.journal import Phase
from ullage.predicting.prediction.avoidable.gain import Gains
from ullage.predicting.prediction.avoidable.moment import PeakMoment
from ullage.predicting.prediction.avoidable.uses import UseTable
from ullage.predicting.prediction.data.avoidable_memory import Avoidable, AvoidableKind

_LEAST_VOCABULARY: Final = 1000
# The smallest fraction of the memory peak for which logits get a row in the report.
_VOCABULARY_SHARE: Final = 1 / 8
_FP32_BYTES: Final = 4
_PRODUCTS: Final = ("aten::bmm", "aten::baddbmm")
_SOFTMAX: Final = ("aten::_softmax", "aten::_softmax_backward_data", "aten::_masked_softmax")
_STAY: Final = frozenset((Role.PARAMETERS, Role.BUFFERS, Role.OPTIMIZER_STATE, Role.GRADIENTS, Role.WORKSPACES))
_NUMBERS: Final = re.compile(r"\.\d+(?=\.|$)")
_MOST_MODULES: Final = 8


def vocabulary_scores(
    moment: PeakMoment, gains: Gains, table: UseTable, vocabularies: Iterable[int]
) -> list[Avoidable]:
    """Return the report rows about logits in float32."""
    sizes = {size for size in vocabularies if size >= _LEAST_VOCABULARY}
    chosen = np.isin(table.columns, list(sizes)) & (table.item_bytes == _FP32_BYTES) & (table.rows > 0)
    of_scores = set(table.block[chosen].tolist())
    blocks = [block for block in _of_passes(moment) if block in of_scores]
    size = moment.size_of(blocks)
    if size < _VOCABULARY_SHARE * moment.allocated_bytes or not moment.is_worth(size):
        return []
    every = [block for block in of_scores if moment.memory.roles[block] not in _STAY]
    count = next(iter(sorted(set(table.columns[chosen & np.isin(table.block, blocks)].tolist()))))
    return [
        moment.row(
            AvoidableKind.LOGITS_IN_FP32,
            blocks,
            gains.without(every),
            evidence=f"{len(blocks)} float32 blocks have a last dimension of {count}, the size of the vocabulary",
            remedy="compute the loss in chunks of tokens, or use a fused linear cross-entropy, which stores no logits",
        )
    ]


def attention_scores(moment: PeakMoment, gains: Gains, table: UseTable) -> list[Avoidable]:
    """Return the report rows about attention matrices that a model saves for the backward pass."""
    is_square = (table.rows == table.columns) & (table.rows > 1)
    squares = set(table.block[is_square & table.of(*_SOFTMAX, *_PRODUCTS)].tolist())
    in_softmax = table.of(*_SOFTMAX)
    modules = {moment.module_of(block) for block in set(table.block[in_softmax & is_square].tolist())}
    lives = moment.memory.lives

    def is_score(block: int) -> bool:
        return block in squares and moment.module_of(block) in modules and bool(modules)

    blocks = [block for block in _of_passes(moment) if is_score(block)]
    if not modules or not moment.is_worth(moment.size_of(blocks)):
        return []
    every = [block for block in range(len(lives.born)) if is_score(block) and moment.memory.roles[block] not in _STAY]
    lengths = sorted(set(table.rows[is_square & np.isin(table.block, blocks)].tolist()))
    return [
        moment.row(
            AvoidableKind.ATTENTION_SCORES,
            blocks,
            gains.without(every),
            evidence=f"{len(blocks)} blocks are matrices of {lengths[-1]} x {lengths[-1]} used by a softmax",
            remedy="use torch.nn.functional.scaled_dot_product_attention, which does not store them",
            module=_NUMBERS.sub(".*", moment.module_of(max(blocks, key=lambda block: moment.size_of([block])))),
        )
    ]


def saved_activations(moment: PeakMoment) -> list[Avoidable]:
    """Return a report row for each kind of module that saves activations, largest first."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for block in moment.unnamed(role=Role.ACTIVATIONS):
        groups[_NUMBERS.sub(".*", moment.module_of(block))].append(block)
    largest = sorted(groups.items(), key=lambda item: -moment.size_of(item[1]))[:_MOST_MODULES]
    return [
        moment.row(
            AvoidableKind.SAVED_ACTIVATIONS,
            blocks,
            None,
            evidence=(
                f"{len(blocks)} blocks of a forward pass are alive at the peak because the backward pass reads them"
            ),
            remedy=(
                "compute them again in the backward pass (torch.utils.checkpoint), or store them in bfloat16 (autocast)"
            ),
            module=module,
        )
        for module, blocks in largest
        if moment.is_worth(moment.size_of(blocks))
    ]


def _of_passes(moment: PeakMoment) -> list[int]:
    phases, roles = moment.memory.lives.entries["phase"], moment.memory.roles
    return [block for block in moment.unnamed() if phases[block] != Phase.OPTIMIZER and roles[block] not in _STAY]
