"""Find jagged nested tensors that PyTorch pads to the sum of their lengths.

If a jagged tensor was created without `max_seqlen`, PyTorch pads each sequence to the sum of the lengths of all
sequences. `to_padded_tensor`, matrix products with a batch of matrices, and `sum` and `mean` over the sequences do so
(torch.nested._internal.ops, torch 2.11 and 2.15: `to_padded_tensor_default`, `matmul_default`, `_apply_reduction`).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ullage.predicting.prediction.avoidable.moment import PeakMoment
from ullage.predicting.prediction.avoidable.uses import UseTable
from ullage.predicting.prediction.data.avoidable_memory import Avoidable, AvoidableKind

_PAD: Final = "aten::_jagged_to_padded_dense_forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Padded:
    block: int
    sequences: int
    total: int
    """The sum of the lengths."""


def nested_padding(moment: PeakMoment, table: UseTable) -> list[Avoidable]:
    """Return the report row about nested tensors that are padded to the sum of their lengths."""
    free = set(moment.unnamed())
    found = [one for one in _padded_to_sum(moment, table) if one.block in free]
    blocks = [one.block for one in found]
    if not moment.is_worth(moment.size_of(blocks)):
        return []
    largest = max(found, key=lambda one: moment.size_of([one.block]))
    return [
        moment.row(
            AvoidableKind.NESTED_PADDING,
            blocks,
            None,
            evidence=(
                f"PyTorch pads each of {largest.sequences} sequences to {largest.total:,} elements, the sum of all "
                "lengths, because the nested tensor has no max_seqlen"
            ),
            remedy="pass max_seqlen= (the longest length) to torch.nested.nested_tensor_from_jagged",
        )
    ]


# The arguments of the operator are the values (sum of lengths x columns) and the offsets (sequences + 1). The operator
# allocates its result first: sequences x padded length x columns.
def _padded_to_sum(moment: PeakMoment, table: UseTable) -> list[_Padded]:
    lives, requested = moment.memory.lives, moment.memory.requests.bytes_by_index
    found = []
    for row in np.flatnonzero(table.of(_PAD) & (table.item_bytes > 0)).tolist():
        if row + 1 == len(table.when) or table.operator[row + 1] != table.operator[row]:
            continue
        total, sequences = int(table.rows[row]), int(table.columns[row + 1]) - 1
        wanted_bytes = sequences * total * int(table.columns[row] * table.item_bytes[row])
        block = int(np.searchsorted(lives.born, table.when[row]))
        if sequences > 1 and block < len(lives.born) and requested.get(int(lives.born[block])) == wanted_bytes:
            found.append(_Padded(block=block, sequences=sequences, total=total))
    return found
