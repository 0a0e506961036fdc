"""Groups the items of a dataset into batches within a token budget, and assigns the batches to ranks.

Random orders use only the raw output of PCG64 and stable sorts, which do not change between NumPy versions. So every
rank, and every resumed run, computes the same batches.
"""

from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_UNBOUNDED: Final = 1 << 62


class EpochOrder:
    """Creates random orders that depend only on a seed and an epoch. Without a seed, all epochs have the same order."""

    def __init__(self, seed: int | None, epoch: int) -> None:
        self._bits = None
        if seed is not None:
            self._bits = np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=(epoch,)))

    def order(self, otherwise: Ints) -> Ints:
        """Return a random permutation of indices. Without a seed, return the indices sorted by the values in
        `otherwise`.
        """
        by = otherwise if self._bits is None else self._bits.random_raw(len(otherwise))
        return np.argsort(by, kind="stable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The batches of an epoch. Only their order and the items inside a bucket change from epoch to epoch.

    Items with the same padded length form a bucket. All batches of a bucket have as many items as the token budget
    allows, except the last one.
    """

    items: Ints
    """The indices of the used dataset items, sorted by bucket. A bucket contains the items with the same padded
    length.
    """
    buckets: npt.NDArray[Any]
    """The bucket index of each element of `items`. Bucket 0 has the longest items."""
    starts: Ints
    """The index in `items` at which each batch begins."""
    ends: Ints
    padded: Ints
    """The length to which the items of each batch are padded."""

    @classmethod
    def cut(cls, padded: Ints, items: Ints, max_tokens: int, max_items: int | None) -> Self:
        """Group items into batches by their padded lengths. An item that exceeds the token budget gets a separate
        batch.
        """
        lengths, buckets, counts = np.unique(-padded, return_inverse=True, return_counts=True)
        lengths = -lengths
        # The smallest dtype that holds the numbers: NumPy sorts 16-bit integers in linear time.
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
        """The number of items in each batch."""
        return self.ends - self.starts

    @property
    def costs(self) -> Ints:
        """The cost of each batch: its number of tokens, including padding."""
        return self.sizes * self.padded

    def filled(self, epoch_order: EpochOrder) -> Ints:
        """Return `items` in a random order. Items are only exchanged with items of the same padded length."""
        order = epoch_order.order(self.items)
        return self.items[order[np.argsort(self.buckets[order], kind="stable")]]

    def rounds(self, ranks: int, *, drop_last: bool) -> int:
        """Return the number of batches that each rank gets in an epoch."""
        return len(self.starts) // ranks if drop_last else -(-len(self.starts) // ranks)


def assign_to_ranks(
    layout: Layout, firsts: Ints, epoch_order: EpochOrder, *, ranks: int, drop_last: bool, largest_first: bool
) -> npt.NDArray[np.int64]:
    """Assign the batches of an epoch to ranks. The result has one column for each rank.

    If the number of batches is not a multiple of the number of ranks, some batches are left out or assigned twice.
    Batches in the same row have the same shape if possible, otherwise similar cost.

    Args:
        layout: the batches.
        firsts: the first item of each batch, by which batches are sorted if `epoch_order` has no seed.
        epoch_order: the random orders of this epoch.
        ranks: the number of ranks.
        drop_last: whether batches are left out rather than assigned twice.
        largest_first: whether the first row has the batches with the highest cost.
    """
    in_turn = epoch_order.order(firsts)
    wanted = layout.rounds(ranks, drop_last=drop_last) * ranks
    chosen = np.resize(in_turn, wanted)  # repeats the first batches if there are too few
    rows = _alike(_ranked(layout)[chosen], ranks, largest_first=largest_first)
    order = epoch_order.order(rows.min(axis=1))
    if largest_first:
        order = np.concatenate([[0], order[order != 0]])
    dealt = chosen[rows[order]]
    if wanted > len(in_turn):
        _part(dealt, chosen[len(in_turn) :])
    return dealt


def _ranked(layout: Layout) -> Ints:
    # if two shapes have the same cost, the longer one comes first
    order = np.lexsort((-layout.padded, -layout.costs))
    costs, padded = layout.costs[order], layout.padded[order]
    is_new = (np.diff(costs, prepend=costs[:1]) != 0) | (np.diff(padded, prepend=padded[:1]) != 0)
    ranked = np.empty_like(order)
    ranked[order] = np.cumsum(is_new)
    return ranked


def _alike(shapes: Ints, ranks: int, *, largest_first: bool) -> Ints:
    order = np.argsort(shapes, kind="stable")
    head, rest = (order[:ranks], order[ranks:]) if largest_first else (order[:0], order)
    _, of, counts = np.unique(shapes[rest], return_inverse=True, return_counts=True)
    nth = np.arange(len(rest)) - _firsts(counts)[of]
    is_pure = nth < (counts // ranks * ranks)[of]
    return np.concatenate([head, rest[is_pure], rest[~is_pure]]).reshape(-1, ranks)


def _part(dealt: Ints, twice: Ints) -> None:
    # Fewer batches are assigned twice than there are ranks. Each of them excludes one rotation of its row, so one
    # rotation is always possible.
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
    return np.cumsum(counts) - counts
