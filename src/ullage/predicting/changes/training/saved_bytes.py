"""Compute how much memory a part of the forward pass saves for the backward pass."""

from collections.abc import Sequence
from dataclasses import dataclass

from ullage.gpu.tracing.journal import Entries, EntryKind


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpan:
    """A part of a forward pass, as a range of indices in the list of recorded allocations."""

    start: int
    end: int
    outputs: tuple[int, ...] = ()
    """The addresses of the output tensors of this part of the forward pass."""


def left_by(entries: Entries, spans: Sequence[BlockSpan], moment: int) -> list[int]:
    """Return the bytes that each part of the forward pass saves for the backward pass, without its outputs.

    Args:
        entries: the entries of the journal.
        spans: one or more spans; a span may contain another span.
        moment: the index at which the backward pass began.
    """
    alive = _alive(entries, min(span.start for span in spans), moment)
    return [
        sum(size for at, address, size in alive if span.start <= at < span.end and address not in span.outputs)
        for span in spans
    ]


# Each tuple has the index, address and bytes of an allocation that is made at index `first` or later and alive at index
# `moment`.
def _alive(entries: Entries, first: int, moment: int) -> list[tuple[int, int, int]]:
    part = entries[first:moment]
    kinds, addresses, sizes = part["kind"].tolist(), part["address"].tolist(), part["size"].tolist()
    devices = part["device"].tolist()
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for offset, kind in enumerate(kinds):
        key = (devices[offset], addresses[offset])
        if kind == EntryKind.ALLOC:
            found[key] = (first + offset, addresses[offset], sizes[offset])
        elif kind == EntryKind.FREE:
            found.pop(key, None)
    return list(found.values())


def largest_of(entries: Entries, first: int, moment: int) -> list[tuple[int, int]]:
    """Return the allocations after `first` that are still alive at `moment`, as index and bytes, the largest first."""
    found = [(index, size) for index, _, size in _alive(entries, first, moment)]
    return sorted(found, key=lambda each: -each[1])
