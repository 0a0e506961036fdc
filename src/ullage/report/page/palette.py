"""One colour for one meaning, over all sections and pictures of a page: names of the colours of page.css."""

from collections.abc import Iterator
from typing import Final

from ullage.report.blocks import BlockHistory
from ullage.report.report import Report, Stack

_ROLES: Final = (
    *("parameters", "gradients", "optimizer state", "activations"),
    *("temporaries", "inputs", "workspaces", "buffers"),
)
_STATES: Final = {
    "allocated": "allocated",
    "cached": "cached",
    "cached beside it": "cached",
    "freed, pending": "pending",
    "CUDA context": "context",
    "context, libraries": "context",
    "not attributed": "context",
    "outside PyTorch's allocator": "outside",
    "other processes": "processes",
    "rounding": "other",
    "unknown": "other",
}
_LINES: Final = 7


def colours_of(report: Report) -> dict[str, str]:
    """Return the colour of each label that has one; the first lines that the pictures name get colours of their own."""
    found = {**_STATES, **{role: f"c{index}" for index, role in enumerate(_ROLES)}}
    named = [label for label in dict.fromkeys(_labels(report)) if label not in found]
    return found | {label: f"l{index}" for index, label in enumerate(named[:_LINES])}


def _labels(report: Report) -> Iterator[str]:
    for picture in report.pictures:
        if isinstance(picture, BlockHistory) and picture.facets:
            yield from picture.facets[0].labels[:_LINES]
        elif isinstance(picture, Stack):
            yield from (label for label, _ in picture.series)
