"""`ullage.TokenBudgetBatchSampler`: batches of items of different lengths with a limited number of tokens.

The memory of a batch depends on its number of items times its longest length. A fixed batch size does not limit this
product. This module does not import torch.
"""

import hashlib
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from ullage.base.errors import UsageError
from ullage.base.public import public
from ullage.training.batching.arguments import LONGEST, brief, place_of, read_lengths, whole
from ullage.training.batching.layout import EpochOrder, Layout, assign_to_ranks

Oversize = Literal["error", "alone", "drop"]


@public
class TokenBudgetBatchSampler:
    """Yields batches of indices with a cost of at most `max_tokens`. The cost of a batch is its number of items times
    its longest length, rounded up to a multiple of `bucket`.

    Each index is used once in an epoch. Items with the same rounded length form a bucket. All batches of a bucket have
    the same number of items, except one with the remaining items. So each bucket has at most two batch shapes, which
    `shapes` lists. Call `set_epoch` before each epoch to get a new order, as with PyTorch's `DistributedSampler`.

    With several ranks, each rank gets the same number of batches, and no rank gets a batch twice. At each step, the
    ranks have batches of the same shape if possible, otherwise of similar cost. The ranks do not communicate: create
    the sampler on each rank with the same lengths and settings.

    Example:
        sampler = ullage.TokenBudgetBatchSampler([len(item) for item in items], max_tokens=16384)

        def collate(some):  # some items of a batch, each a tensor of tokens
            width = sampler.round_up(max(len(item) for item in some))
            return torch.stack([F.pad(item, (0, width - len(item))) for item in some])

        loader = DataLoader(items, batch_sampler=sampler, collate_fn=collate)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for batch in loader: ...
    """

    def __init__(
        self,
        lengths: Iterable[Any],
        max_tokens: int,
        *,
        bucket: int = 64,
        max_items: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
        oversize: Oversize = "error",
        largest_first: bool = True,
    ) -> None:
        """Plan the batches for items with known lengths.

        Args:
            lengths: the length of each item of the dataset, in tokens, frames, or another unit that determines memory:
                a list, an array or a tensor of whole numbers.
            max_tokens: the maximum cost of a batch, in the unit of the lengths.
            bucket: lengths are rounded up to a multiple of this number. A larger number adds padding and reduces the
                number of shapes.
            max_items: the maximum number of items in a batch, even if the items are short; None for no maximum.
            shuffle: whether items and batches are in a new random order in each epoch. If false, every epoch is the
                same: buckets are filled in the order of the indices, and batches are sorted by their first index.
            seed: the seed of the random order.
            num_replicas: the number of ranks among which the batches are divided. None for the world size of
                `torch.distributed` if it is initialised, else 1.
            rank: the index of this rank. None for the rank of `torch.distributed` if it is initialised, else 0.
            drop_last: what happens if the batches do not divide evenly among the ranks. If true, a few batches are left
                out; if false, a few batches are assigned to two ranks. These batches differ from epoch to epoch. It has
                no effect with a single rank.
            oversize: what to do with an item that costs more than `max_tokens` by itself: raise an error ("error"), put
                it into a separate batch ("alone"), or leave it out and count it in `dropped` ("drop").
            largest_first: whether the most expensive batch is the first of an epoch, on each rank. Then the peak memory
                of the run is reached at once: the allocator gets its largest blocks before its segments are split, and
                an out-of-memory error occurs in the first step rather than hours later.

        Raises:
            UsageError: an argument has a wrong type or value.
        """
        self._lengths = read_lengths(lengths)
        self._bucket = whole("bucket", bucket, most=LONGEST)
        self._max_tokens = whole("max_tokens", max_tokens)
        self._max_items = None if max_items is None else whole("max_items", max_items)
        self._shuffle = bool(shuffle)
        self._seed = whole("seed", seed, least=0)
        self._ranks, self._rank = place_of(num_replicas, rank)
        self._drop_last = bool(drop_last)
        self._largest_first = bool(largest_first)
        if oversize not in ("error", "alone", "drop"):
            raise UsageError(f"oversize={oversize!r} is not allowed; expected 'error', 'alone' or 'drop'")
        self._oversize = oversize
        self._layout = self._laid_out()
        self._epoch = 0
        self._start = 0
        self._position = 0
        self._least = 0  # the position at which the current iteration began
        self._iteration = 0

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch of this rank."""
        return self._layout.rounds(self._ranks, drop_last=self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        # The iteration starts only when the first batch is requested. A DataLoader with workers creates two iterators,
        # but uses only one.
        start, self._start = self._start, 0
        self._position = self._least = start
        self._iteration = iteration = self._iteration + 1
        epoch_order = EpochOrder(self._seed if self._shuffle else None, self._epoch)
        items = self._layout.filled(epoch_order)
        starts, ends = self._layout.starts, self._layout.ends
        dealt = assign_to_ranks(
            self._layout,
            items[starts],
            epoch_order,
            ranks=self._ranks,
            drop_last=self._drop_last,
            largest_first=self._largest_first,
        )
        for batch in dealt[start:, self._rank].tolist():
            if iteration == self._iteration:
                self._position += 1
            yield items[starts[batch] : ends[batch]].tolist()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration. The epoch and the seed determine the order of items and batches.

        If a state with the same epoch was loaded, the next iteration resumes at its batch. Otherwise it starts at the
        first batch.

        Raises:
            UsageError: the epoch is not a whole number of 0 or more.
        """
        epoch = whole("epoch", epoch, least=0)
        if epoch != self._epoch:
            self._go_to(epoch, 0)

    @property
    def sampler(self) -> Self:
        """This object itself, because Lightning calls `set_epoch` on `loader.batch_sampler.sampler`."""
        return self

    @property
    def epoch(self) -> int:
        """The current epoch. It is 0 until an epoch is set or loaded."""
        return self._epoch

    @property
    def start(self) -> int:
        """The index of the batch at which the next iteration begins. It is 0 unless a state was loaded."""
        return self._start

    @property
    def dropped(self) -> int:
        """The number of items that are left out because they are too long."""
        return len(self._lengths) - len(self._layout.items)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The shapes (items, padded length) of all batches in all epochs, the most expensive first."""
        pairs = np.unique(np.stack([self._layout.sizes, self._layout.padded], axis=1), axis=0).tolist()
        return sorted(((items, length) for items, length in pairs), key=lambda pair: (-pair[0] * pair[1], -pair[1]))

    def round_up(self, length: int) -> int:
        """Round the length of a batch's longest item up to the length to which the batch is padded."""
        return -(-length // self._bucket) * self._bucket

    def padded_length(self, indices: Iterable[int]) -> int:
        """Return the length to which a batch is padded. `indices` are the dataset indices of its items.

        Raises:
            UsageError: `indices` is empty.
        """
        chosen = self._lengths[np.fromiter(indices, dtype=np.int64)]
        if not len(chosen):
            raise UsageError("padded_length was called with no indices; expected the indices of a batch")
        return self.round_up(int(chosen.max()))

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Return the position in the epoch and the sampler's settings, as plain data that JSON can store.

        The position is the number of batches of this rank, counted from the beginning of the epoch, that are complete.
        All ranks have the same position, so the state of one rank can be loaded on all ranks.

        Args:
            consumed: the number of batches of this epoch that the training loop has completed, including those before a
                resume: `for n, batch in enumerate(loader, start=sampler.start + 1)` counts them. None for the number of
                batches that the sampler has returned, which is correct with `num_workers=0`. Workers request
                `num_workers * prefetch_factor` batches ahead of the training loop; these batches would be skipped after
                a resume.

        Raises:
            UsageError: `consumed` is not between the start of this iteration and the number of returned batches.
        """
        position = self._position
        if consumed is not None:
            position = whole("consumed", consumed, least=0)
            if not self._least <= position <= self._position:
                raise UsageError(
                    f"consumed={position} is out of range: in epoch {self._epoch} this sampler has returned batches "
                    f"{self._least} to {self._position}; expected a number in that range, counted from the beginning "
                    "of the epoch and not from the resume: use enumerate(loader, start=sampler.start + 1)"
                )
        return {
            "epoch": self._epoch,
            "position": position,
            "lengths": self._fingerprint,
            "settings": self._settings(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume after the last batch of a saved state. If the saved epoch was complete, the next iteration is empty.

        The next iteration resumes, whoever starts it. So load the state after `Guard.rehearse` if both use the same
        data loader.

        Raises:
            UsageError: `state` is not a state of such a sampler, or the sampler has different lengths or settings.
        """
        try:
            epoch, position = whole("epoch", state["epoch"], least=0), whole("position", state["position"], least=0)
            saved = {"lengths": state["lengths"], **state["settings"]}
        except (KeyError, TypeError, UsageError):
            raise UsageError(
                f"the loaded state is not the state of a TokenBudgetBatchSampler but {brief(state)}; expected a value "
                "that state_dict() has returned"
            ) from None
        own = {"lengths": self._fingerprint, **self._settings()}
        differing = [name for name in own if name not in saved or saved[name] != own[name]]
        if differing:
            there = ", ".join(f"{name}={brief(saved.get(name))}" for name in differing)
            here = ", ".join(f"{name}={brief(own[name])}" for name in differing)
            raise UsageError(
                f"the state was saved with {there}, but this sampler has {here}, so its batches differ; create the "
                "sampler with the saved values, or start the next epoch with set_epoch"
            )
        if position > len(self):
            raise UsageError(
                f"the state has position {position}; expected at most {len(self)}, the number of batches of an epoch"
            )
        self._go_to(epoch, position)

    def _go_to(self, epoch: int, position: int) -> None:
        self._epoch = epoch
        self._start = self._position = self._least = position
        self._iteration += 1  # batches of an earlier iteration are no longer counted

    def _laid_out(self) -> Layout:
        padded = -(-self._lengths // self._bucket) * self._bucket
        too_long = np.flatnonzero(padded > self._max_tokens)
        kept = np.arange(len(padded))
        if len(too_long) and self._oversize == "error":
            first, longest = int(too_long[0]), int(padded.max())
            others = f" ({len(too_long)} items are too long)" if len(too_long) > 1 else ""
            raise UsageError(
                f"item {first} has length {self._lengths[first]}, padded to {padded[first]}{others}; expected at most "
                f"max_tokens={self._max_tokens}: shorten it, pass max_tokens={longest}, pass oversize='alone' to put "
                "it into a separate batch, or pass oversize='drop' to leave it out"
            )
        if self._oversize == "drop":
            kept = np.delete(kept, too_long)
            if not len(kept):
                raise UsageError(
                    f"all {len(padded)} items are longer than max_tokens={self._max_tokens} and are left out; expected "
                    f"at least one shorter item: pass max_tokens={int(padded.min())} or more"
                )
        layout = Layout.cut(padded[kept], kept, self._max_tokens, self._max_items)
        if not layout.rounds(self._ranks, drop_last=self._drop_last):
            raise UsageError(
                f"{len(layout.starts)} batches are too few for num_replicas={self._ranks} with drop_last=True; "
                "expected at least one batch for each rank: lower max_tokens, or pass drop_last=False"
            )
        return layout

    def _settings(self) -> dict[str, Any]:
        return {
            "max_tokens": self._max_tokens,
            "bucket": self._bucket,
            "max_items": self._max_items,
            "shuffle": self._shuffle,
            "seed": self._seed,
            "num_replicas": self._ranks,
            "drop_last": self._drop_last,
            "oversize": self._oversize,
            "largest_first": self._largest_first,
        }

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(self._lengths.astype("<i8").tobytes()).hexdigest()[:16]
        return f"{len(self._lengths)} lengths ({digest})"
