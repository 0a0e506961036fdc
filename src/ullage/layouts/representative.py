"""Which ranks of a layout are run: ranks that are alike by construction once, those that differ each.

Along every axis but the pipeline's, the first rank stands for the others: they run the same code, and where parameters
or sequences do not divide evenly, PyTorch gives the first ranks the larger parts (`torch.chunk`). Along the pipeline
the first stage has the embedding and holds the most micro-batches, the last has the head and the loss, and of those
between, which have the same layers, the second holds the most micro-batches.
"""

from dataclasses import dataclass
from math import prod
from typing import Final

from ullage.layouts.layout import CardLayout
from ullage.layouts.option_map import OptionMap

PIPELINE: Final = "pp"
ALL_RANKS: Final = "all ranks"
FIRST: Final = "first stage"
LAST: Final = "last stage"
RANKS: Final = ("alike", "stages")
"""The words for what is run: one of each kind that is alike by construction, or one of every stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepresentativeRank:
    """A rank that is run, and what it stands for."""

    rank: int
    stands_for: str


def ranks_of(layout: CardLayout, option_map: OptionMap, *, every_stage: bool = False) -> tuple[RepresentativeRank, ...]:
    """Return the ranks to run of a layout."""
    stages = layout.size(PIPELINE)
    if stages == 1:
        return (RepresentativeRank(rank=0, stands_for=ALL_RANKS),)
    stride = _stride(layout, option_map)
    chosen = range(stages) if every_stage else sorted({0, min(1, stages - 1), stages - 1})
    return tuple(RepresentativeRank(rank=stage * stride, stands_for=_name(stage, stages)) for stage in chosen)


def stage_of(layout: CardLayout, option_map: OptionMap, rank: int) -> int | None:
    """Return a rank's pipeline stage; None where there is one stage only."""
    stages = layout.size(PIPELINE)
    return None if stages == 1 else rank // _stride(layout, option_map) % stages


def _stride(layout: CardLayout, option_map: OptionMap) -> int:
    """Return the number of ranks from one stage to the next: the cards of the axes that lie within the pipeline's."""
    named = [name for name, _ in layout.sizes if name in option_map.order]
    inner = option_map.order[option_map.order.index(PIPELINE) + 1 :] if PIPELINE in option_map.order else ()
    return prod(layout.size(name) for name in named if name in inner)


def _name(stage: int, stages: int) -> str:
    if stage == 0:
        return FIRST
    return LAST if stage == stages - 1 else f"stage {stage + 1}"
