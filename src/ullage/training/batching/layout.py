"""The plan of an epoch: items of different lengths become batches under a token budget, which are assigned to ranks.

It knows lengths and numbers only: no torch, no data. Whatever looks random comes from the raw bits of PCG64 and stable
sorts, which NumPy promises to keep from one version to the next: every rank, and a process that goes on weeks later,
deals alike.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_UNBOUNDED: Final = 1 << 62


class EpochOrder:
    """Random orders that follow from a seed and an epoch; without a seed, the existing order."""

    def __init__(self, seed: int | None, epoch: int) -> None:
        self._bits = None
        if seed is not None:
            self._bits = np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=(epoch,)))

    def order(self, otherwise: Ints) -> Ints:
        """Return the positions of `otherwise`'s entries in random order, or sorted by it without a seed."""
        by = otherwise if self._bits is None else self._bits.random_raw(len(otherwise))
        return np.argsort(by, kind="stable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The batches of an epoch and their cost: the same in every epoch.

    Items of one padded length, a bucket, lie side by side, the longest bucket first. Its batches all have as many items
    as the budget allows; the last one has what is left. So there are at most two shapes a bucket.
    """

    items: Ints
    """Indices of the items that take part, bucket by bucket."""
    buckets: npt.NDArray[Any]
    """The bucket of each entry of `items`; bucket 0 has the longest."""
    starts: Ints
    """Position in `items` where each batch begins."""
    ends: Ints
    padded: Ints
    """The length to which the items of each batch are padded."""

    @classmethod
    def cut(cls, padded: Ints, items: Ints, max_tokens: int, max_items: int | None) -> Self:
        """Cut items, given their padded lengths, into batches; one that is too long is a batch of its own."""
        lengths, buckets, counts = np.unique(-padded, return_inverse=True, return_counts=True)
        lengths = -lengths
        # The smallest type that holds the numbers: NumPy sorts 16 bits in linear time.
        buckets = buckets.astype(np.min_scalar_type(len(lengths)))
        by_bucket = np.argsort(buckets, kind="stable")
        most = min(max_items or len(items), len(items))
        capacity = np.clip(min(max_tokens, _UNBOUNDED) // lengths, 1, most)
        batches = -(-counts // capacity)
        of = np.repeat(np.arange(len(lengths)), batches)
        nth = np.arange(len(of)) - _firsts(batches)[of]
        starts = _firsts(counts)[of] + nth * capacity[of]
        ends = np.minimum(starts + capacity[of], np.cumsum(counts)[of])
        return cls(items=items[by_bucket], buckets=buckets[by_bucket], starts=starts, ends=ends, padded=lengths[of])

    @property
    def sizes(self) -> Ints:
        """Number of items of each batch."""
        return self.ends - self.starts

    @property
    def costs(self) -> Ints:
        """Cost of each batch in tokens."""
        return self.sizes * self.padded

    def filled(self, epoch_order: EpochOrder) -> Ints:
        """Return `items` in the order of an epoch, each still in its bucket."""
        order = epoch_order.order(self.items)
        return self.items[order[np.argsort(self.buckets[order], kind="stable")]]

    def rounds(self, ranks: int, *, drop_last: bool) -> int:
        """Return the number of batches that each rank gets in an epoch."""
        return len(self.starts) // ranks if drop_last else -(-len(self.starts) // ranks)


def assign_to_ranks(
    layout: Layout, firsts: Ints, epoch_order: EpochOrder, *, ranks: int, drop_last: bool, largest_first: bool
) -> npt.NDArray[np.int64]:
    """Assign the batches of an epoch to ranks: one row for each round, one column for each rank.

    Where they do not go evenly, some are left out or dealt twice, never to the same rank. The batches of a round are of
    one shape as far as that goes, and of like cost in the rounds made of what is left over.

    Args:
        layout: the batches.
        firsts: the first item of each, by which they come in order where nothing is left to epoch_order.
        epoch_order: the orders of this epoch.
        ranks: how many ranks there are.
        drop_last: whether batches are left out rather than dealt twice.
        largest_first: whether the first round has the batches that cost most.
    """
    in_turn = epoch_order.order(firsts)
    wanted = layout.rounds(ranks, drop_last=drop_last) * ranks
    chosen = np.resize(in_turn, wanted)  # begins again at the front where there are too few
    rows = _alike(_ranked(layout)[chosen], ranks, largest_first=largest_first)
    order = epoch_order.order(rows.min(axis=1))
    if largest_first:
        order = np.concatenate([[0], order[order != 0]])
    dealt = chosen[rows[order]]
    if wanted > len(in_turn):
        _part(dealt, chosen[len(in_turn) :])
    return dealt


def _ranked(layout: Layout) -> Ints:
    """Return the rank of each batch's shape by cost, 0 for the highest; of equal costs the longer shape first."""
    order = np.lexsort((-layout.padded, -layout.costs))
    costs, padded = layout.costs[order], layout.padded[order]
    is_new = (np.diff(costs, prepend=costs[:1]) != 0) | (np.diff(padded, prepend=padded[:1]) != 0)
    ranked = np.empty_like(order)
    ranked[order] = np.cumsum(is_new)
    return ranked


def _alike(shapes: Ints, ranks: int, *, largest_first: bool) -> Ints:
    """Return the positions of `shapes` in rows of one shape as far as possible; the rest is ordered by cost."""
    order = np.argsort(shapes, kind="stable")
    head, rest = (order[:ranks], order[ranks:]) if largest_first else (order[:0], order)
    _, of, counts = np.unique(shapes[rest], return_inverse=True, return_counts=True)
    nth = np.arange(len(rest)) - _firsts(counts)[of]
    is_pure = nth < (counts // ranks * ranks)[of]
    return np.concatenate([head, rest[is_pure], rest[~is_pure]]).reshape(-1, ranks)


def _part(dealt: Ints, twice: Ints) -> None:
    """Rotate rows so that no rank gets both copies of a batch.

    There are fewer copies than ranks, and each rules out one turn of its row: one is always left.
    """
    ranks = dealt.shape[1]
    held: dict[int, set[int]] = {int(batch): set() for batch in twice}
    for row in np.flatnonzero(np.isin(dealt, twice).any(axis=1)):
        copies = [(place, batch) for place, batch in enumerate(dealt[row].tolist()) if batch in held]
        turn = next(
            turn for turn in range(ranks) if not any((place + turn) % ranks in held[batch] for place, batch in copies)
        )
        dealt[row] = np.roll(dealt[row], turn)
        for place, batch in copies:
            held[batch].add((place + turn) % ranks)


def _firsts(counts: Ints) -> Ints:
    """Return the start of each of several adjacent runs."""
    return np.cumsum(counts) - counts
