"""Select the ranks of a layout to run: one rank from each group with equal memory use."""

# Along every axis except those of the pipeline and of the sequence, the first rank represents the others. All ranks run
# the same code, and if parameters do not divide evenly, PyTorch gives the first ranks the larger shards
# (`torch.chunk`). Along the pipeline, the first stage has the embedding and holds the most micro-batches. The last
# stage has the head and the loss. The stages between have the same layers, and of these the second stage holds the most
# micro-batches. Along the sequence (context parallelism), ring attention makes each rank attend to different halves of
# the sequence in a different order (torch.distributed.tensor.experimental). So ranks allocate in a different order, and
# their reserved memory follows no simple rule.

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
    """A rank to run, and a text that names all ranks with the same memory use."""

    rank: int
    stands_for: str


def ranks_of(
    layout: CardLayout, option_map: OptionMap, *, every_stage: bool = False, every_context: bool = False
) -> tuple[RepresentativeRank, ...]:
    """Return the ranks of a layout to run.

    Args:
        layout: the sizes of the axes.
        option_map: the numbering of the ranks.
        every_stage: whether to run every stage of the pipeline, rather than one stage of each kind.
        every_context: whether to run every rank along the sequence, rather than the first only.
    """
    stages, contexts = layout.size(PIPELINE), layout.size(CONTEXT)
    chosen = range(stages) if every_stage else sorted({0, min(1, stages - 1), stages - 1})
    across, along = _stride(layout, option_map, PIPELINE), _stride(layout, option_map, CONTEXT)
    return tuple(
        RepresentativeRank(rank=stage * across + context * along, stands_for=_name(stage, stages, context, contexts))
        for stage in chosen
        for context in range(contexts if every_context else 1)
    )


# The product of the sizes of all inner axes.
def _stride(layout: CardLayout, option_map: OptionMap, axis: str) -> int:
    named = [name for name, _ in layout.sizes if name in option_map.order]
    inner = option_map.order[option_map.order.index(axis) + 1 :] if axis in option_map.order else ()
    return prod(layout.size(name) for name in named if name in inner)


def _name(stage: int, stages: int, context: int, contexts: int) -> str:
    between = LAST if stage == stages - 1 else f"stage {stage + 1}"
    names = [FIRST if stage == 0 else between] if stages > 1 else []
    return ", ".join([*names, *([f"{CONTEXT} rank {context}"] if contexts > 1 else [])]) or ALL_RANKS
