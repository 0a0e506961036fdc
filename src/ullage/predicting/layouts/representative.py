"""Which ranks of a layout are run: ranks that are alike by construction once, those that differ each.

Along every axis but those of the pipeline and of the sequence, the first rank stands for the others: they run the same
code, and where parameters do not divide evenly, PyTorch gives the first ranks the larger parts (`torch.chunk`). Along
the pipeline the first stage has the embedding and holds the most micro-batches, the last has the head and the loss, and
of those between, which have the same layers, the second holds the most micro-batches. Along the sequence (context
parallelism) ring attention has each rank attend to other halves of the sequence in another order
(torch.distributed.tensor.experimental): so ranks allocate in another order, and reserve more or less, by no rule.
"""

from dataclasses import dataclass
from math import prod
from typing import Final

from ullage.predicting.layouts.layout import CardLayout
from ullage.predicting.layouts.option_map import CONTEXT, PIPELINE, OptionMap

ALL_RANKS: Final = "all ranks"
FIRST: Final = "first stage"
LAST: Final = "last stage"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepresentativeRank:
    """A rank that is run, and what it stands for."""

    rank: int
    stands_for: str


def ranks_of(
    layout: CardLayout, option_map: OptionMap, *, every_stage: bool = False, every_context: bool = False
) -> tuple[RepresentativeRank, ...]:
    """Return the ranks to run of a layout.

    Args:
        layout: its sizes.
        option_map: how its ranks are numbered.
        every_stage: whether each stage of the pipeline is run, and not one of each kind.
        every_context: whether each rank along the sequence is run, and not the first for all.
    """
    stages, contexts = layout.size(PIPELINE), layout.size(CONTEXT)
    chosen = range(stages) if every_stage else sorted({0, min(1, stages - 1), stages - 1})
    across, along = _stride(layout, option_map, PIPELINE), _stride(layout, option_map, CONTEXT)
    return tuple(
        RepresentativeRank(rank=stage * across + context * along, stands_for=_name(stage, stages, context, contexts))
        for stage in chosen
        for context in range(contexts if every_context else 1)
    )


def _stride(layout: CardLayout, option_map: OptionMap, axis: str) -> int:
    """Return the number of ranks from one to the next along an axis: the cards of the axes that lie within it."""
    named = [name for name, _ in layout.sizes if name in option_map.order]
    inner = option_map.order[option_map.order.index(axis) + 1 :] if axis in option_map.order else ()
    return prod(layout.size(name) for name in named if name in inner)


def _name(stage: int, stages: int, context: int, contexts: int) -> str:
    between = LAST if stage == stages - 1 else f"stage {stage + 1}"
    names = [FIRST if stage == 0 else between] if stages > 1 else []
    return ", ".join([*names, *([f"{CONTEXT} rank {context}"] if contexts > 1 else [])]) or ALL_RANKS
