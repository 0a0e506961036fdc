"""Compress memory blocks for an HTML page. If there are too many, the smallest are replaced by their sum.

The script columns.js decompresses the text on the page.
"""

import base64
import json
import zlib
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ullage.base.units import text_of_bytes
from ullage.report.blocks import BlockHistory, Column, Facet, LifeColumns

_WIDTHS = (1, 2, 4, 8)
# The numbers of these columns never decrease, so differences between neighbours are small and compress well.
_RISING = ("born", "event", "time_us")
_MOST_BLOCKS: Final = 1_000_000
# in bytes; keeps a page below 10 MB
_MOST_LETTERS: Final = 7_500_000
# The highest and the lowest memory level of each interval are kept.
_STRETCHES: Final = 4096

Mask = npt.NDArray[np.bool_]


def packed_within(history: BlockHistory, *, most_blocks: int = _MOST_BLOCKS, most_letters: int = _MOST_LETTERS) -> str:
    """Compress the history of memory blocks to text, and omit the smallest blocks if the text gets too long."""
    keep = min(len(history.blocks.born), most_blocks)
    while True:
        slim = slimmed(history, keep)
        text = packed(slim)
        if len(text) <= most_letters or keep < 1000:
            return text
        keep = int(keep * 0.9 * most_letters / len(text))


def slimmed(history: BlockHistory, most_blocks: int) -> BlockHistory:
    """Keep only the largest blocks of a history.

    The sizes of all other blocks are summed at each position on the time axis.
    """
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
    change = np.zeros(moments + 1, np.int64)
    born, size = blocks.born[chosen], blocks.size_bytes[chosen]
    gone = np.minimum(born + (blocks.life + blocks.wait)[chosen], moments)
    np.add.at(change, born, size)
    np.add.at(change, gone, -size)
    return np.cumsum(change)[:moments]


def _moments(history: BlockHistory, chosen: Mask, whole: Column) -> Column:
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


def packed(thing: Any) -> str:
    """Return a dataclass of columns, texts and numbers as compressed text.

    The data are the length of a JSON text (four bytes), that JSON text, and the bytes of the columns. In the JSON, a
    column is `{"at": its first byte, "n": its length, "width": bytes of a number, "unit": the factor of each number,
    "low": the number that is then added, "sums": whether each number is the difference from the one before}`. The
    lowest bytes of all numbers come first, then the next higher bytes, and so on. So similar bytes are adjacent.
    """
    pieces: list[bytes] = []
    text = json.dumps(_plain(thing, pieces), separators=(",", ":")).encode()
    whole = len(text).to_bytes(4, "little") + text + b"".join(pieces)
    return base64.b64encode(zlib.compress(whole, 6)).decode()


def _plain(thing: Any, pieces: list[bytes], name: str = "") -> Any:
    if isinstance(thing, np.ndarray):
        return _column(thing, pieces, is_rising=name in _RISING)
    if is_dataclass(thing):
        return {field.name: _plain(getattr(thing, field.name), pieces, field.name) for field in fields(thing)}
    if isinstance(thing, tuple):
        return [_plain(each, pieces) for each in thing]
    return thing


def _column(values: Column, pieces: list[bytes], *, is_rising: bool) -> dict[str, Any]:
    if is_rising:
        values = np.diff(values, prepend=0)
    low = int(values.min(initial=0))
    numbers = (values - low).astype(np.uint64)
    unit = 512 if len(numbers) and not (numbers & 511).any() else 1
    numbers //= np.uint64(unit)
    most = int(numbers.max(initial=0))
    width = next(width for width in _WIDTHS if most < 1 << (8 * width))
    planes = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
    at = sum(map(len, pieces))
    pieces.append(np.ascontiguousarray(planes.T).tobytes())
    return {"at": at, "n": len(values), "width": width, "unit": unit, "low": low, "sums": is_rising}
