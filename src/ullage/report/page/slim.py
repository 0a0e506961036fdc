"""Blocks over time made small enough for a page: where there are too many, the smallest are summed up."""

from dataclasses import fields, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ullage.base.units import text_of_bytes
from ullage.report.blocks import BlockHistory, Column, Facet, LifeColumns
from ullage.report.page.columns import packed

_MOST_BLOCKS: Final = 1_000_000
_MOST_LETTERS: Final = 7_500_000
"""Largest packed text: with it the page stays below 10 MB."""
_STRETCHES: Final = 4096
"""Number of stretches of the run whose fullest and emptiest moments are kept, so that the picture keeps its shape."""

Mask = npt.NDArray[np.bool_]


def packed_within(history: BlockHistory, *, most_blocks: int = _MOST_BLOCKS, most_letters: int = _MOST_LETTERS) -> str:
    """Return the packed text of blocks over time, without the smallest blocks where there are too many."""
    keep = min(len(history.blocks.born), most_blocks)
    while True:
        slim = slimmed(history, keep)
        text = packed(slim)
        if len(text) <= most_letters or keep < 1000:
            return text
        keep = int(keep * 0.9 * most_letters / len(text))


def slimmed(history: BlockHistory, most_blocks: int) -> BlockHistory:
    """Return the history with the largest blocks alone; the bytes of all others are summed up, moment by moment."""
    blocks = history.blocks
    if len(blocks.born) <= most_blocks:
        return history
    order = np.argsort(blocks.size_bytes, kind="stable")
    left_out = np.zeros(len(order), bool)
    left_out[order[: len(order) - most_blocks]] = True
    small = _level(blocks, left_out, len(history.event))
    whole = small + _level(blocks, ~left_out, len(history.event))
    moments = _moments(history, ~left_out, whole)

    def at(moment: Column) -> Column:
        return np.asarray(np.searchsorted(moments, moment), np.int64)

    kept = LifeColumns(**{each.name: getattr(blocks, each.name)[~left_out] for each in fields(blocks)})
    born, freed = at(kept.born), at(kept.born + kept.life)
    segments = history.segments
    least = int(blocks.size_bytes[order[len(order) - most_blocks]])
    return replace(
        history,
        event=history.event[moments],
        time_us=history.time_us[moments] if len(history.time_us) else history.time_us,
        blocks=replace(kept, born=born, life=freed - born, wait=at(kept.born + kept.life + kept.wait) - freed),
        facets=tuple(
            Facet(title=facet.title, labels=facet.labels, of_block=facet.of_block[~left_out])
            for facet in history.facets
        ),
        segments=replace(segments, born=at(segments.born), life=at(segments.born + segments.life) - at(segments.born)),
        step_ends=tuple(at(np.array(history.step_ends, np.int64)).tolist()),
        moment=int(at(np.array(history.moment))),
        small_bytes=small[moments],
        small_label=f"{left_out.sum():,} blocks of at most {text_of_bytes(least)}, summed up",
    )


def _level(blocks: LifeColumns, chosen: Mask, moments: int) -> Column:
    """Return the bytes of chosen blocks at every moment."""
    change = np.zeros(moments + 1, np.int64)
    born, size = blocks.born[chosen], blocks.size_bytes[chosen]
    gone = np.minimum(born + (blocks.life + blocks.wait)[chosen], moments)
    np.add.at(change, born, size)
    np.add.at(change, gone, -size)
    return np.cumsum(change)[:moments]


def _moments(history: BlockHistory, chosen: Mask, whole: Column) -> Column:
    """Return the moments that are kept: all at which something kept happens, and the extremes of each stretch."""
    blocks, segments, last = history.blocks, history.segments, len(history.event) - 1
    starts = np.unique(np.linspace(0, last + 1, _STRETCHES, endpoint=False).astype(np.int64))
    stretch = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, last + 1)))
    extremes = [np.lexsort((sign * whole, stretch))[starts] for sign in (1, -1)]
    born = blocks.born[chosen]
    freed = born + blocks.life[chosen]
    kept = np.unique(
        np.concatenate(
            [
                np.array([0, history.moment, last, *history.step_ends]),
                *extremes,
                *(born, freed, freed + blocks.wait[chosen]),
                *(segments.born, segments.born + segments.life),
            ]
        )
    )
    return np.asarray(kept[kept <= last], np.int64)
