"""`ullage.TokenBudgetBatchSampler`: batches of items of different lengths that all cost about the same.

Memory goes by items times the longest of them, which no fixed number of items bounds: with variable lengths the first
long batch runs out, hours in. It knows no torch: a `DataLoader` takes any iterable as its `batch_sampler`.
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
    """Hands out batches of indices that cost at most `max_tokens`: items times the longest, rounded up to `bucket`.

    Every index comes exactly once an epoch. All batches of a bucket have the same number of items but for one that has
    what is left, so an epoch has at most two shapes a bucket, the same in every epoch: `shapes` lists them. Call
    `set_epoch` before each epoch for another order, as with PyTorch's `DistributedSampler`.

    With several ranks each gets as many batches as the others, no batch twice, and at the same position ranks have
    batches of the same shape where that is possible and of like cost elsewhere: none waits for another. The ranks need
    not talk: make the sampler on each with the same lengths and settings.

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
        """Plan batches of items whose lengths are known.

        Args:
            lengths: the length of each item of the data set, in tokens, frames, or whatever memory goes by: a list, an
                array or a tensor of whole numbers.
            max_tokens: the most that a batch may cost.
            bucket: lengths are rounded up to a multiple of this. More of it pads more and makes fewer shapes.
            max_items: the most items of a batch, however short they are.
            shuffle: whether items and batches come in another random order each epoch. If not, every epoch is the same:
                a bucket is filled in the order of indices, and batches come by the first index that they hold.
            seed: the seed of the random order.
            num_replicas: among how many ranks the batches are dealt; None for what `torch.distributed` says where it is
                initialised, and 1 elsewhere.
            rank: which of them this is; None as above, and 0 elsewhere.
            drop_last: where the batches do not go evenly into the ranks, a few are left out if True and dealt to two
                ranks if False, others each epoch. On one rank it changes nothing.
            oversize: what to do about an item that alone costs more than `max_tokens`: "error", a batch of its own
                ("alone"), or leave it out and count it in `dropped` ("drop").
            largest_first: whether the batch that costs most is the first of an epoch, on each rank: what memory is ever
                needed is then needed at once, the allocator gets its largest blocks while none is cut up, and an error
                of memory comes in the first step rather than hours later.

        Raises:
            UsageError: an argument is not what is expected.
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
            raise UsageError(f"oversize={oversize!r}; expected 'error', 'alone' or 'drop'")
        self._oversize = oversize
        self._layout = self._laid_out()
        self._epoch = 0
        self._start = 0
        self._position = 0
        self._least = 0  # where the iteration began whose batches are handed out now
        self._iteration = 0

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch, also while one is resumed in its middle."""
        return self._layout.rounds(self._ranks, drop_last=self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches of the epoch set by `set_epoch` or by a loaded state, which is resumed where it was.

        Nothing begins before the first batch is asked for: a DataLoader with workers makes two iterators and uses one.
        """
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
        """Set the epoch of the next iteration: the order follows from it and the seed.

        Naming the epoch of a loaded state keeps its position; any other begins at the front.

        Raises:
            UsageError: the epoch is no whole number of 0 or more.
        """
        epoch = whole("epoch", epoch, least=0)
        if epoch != self._epoch:
            self._go_to(epoch, 0)

    @property
    def sampler(self) -> Self:
        """The sampler itself: Lightning calls `set_epoch` of `loader.batch_sampler.sampler`."""
        return self

    @property
    def epoch(self) -> int:
        """The epoch that was last set or loaded; 0 at first."""
        return self._epoch

    @property
    def start(self) -> int:
        """The batch at which the next iteration begins: 0, except after a loaded state."""
        return self._start

    @property
    def dropped(self) -> int:
        """Number of items that are left out because they are too long."""
        return len(self._lengths) - len(self._layout.items)

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """All shapes of batches, in any epoch and on any rank, as (items, padded length), the most expensive first.

        Of two that cost alike the longer one comes first.
        """
        pairs = np.unique(np.stack([self._layout.sizes, self._layout.padded], axis=1), axis=0).tolist()
        return sorted(((items, length) for items, length in pairs), key=lambda pair: (-pair[0] * pair[1], -pair[1]))

    def round_up(self, length: int) -> int:
        """Return the padded length of a batch whose longest item has this length."""
        return -(-length // self._bucket) * self._bucket

    def padded_length(self, indices: Iterable[int]) -> int:
        """Return the padded length of the batch with these indices.

        Raises:
            UsageError: there are none.
        """
        chosen = self._lengths[np.fromiter(indices, dtype=np.int64)]
        if not len(chosen):
            raise UsageError("padded_length was asked of no indices; expected those of a batch")
        return self.round_up(int(chosen.max()))

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Return the position in the epoch and the sampler's settings: plain data that JSON can hold.

        The position is the number of batches of this rank, counted from the beginning of the epoch, after which to go
        on. All ranks are at the same one, so the state of one rank serves them all.

        Args:
            consumed: how many batches of this epoch the training loop is done with, those before a resume included:
                `for n, batch in enumerate(loader, start=sampler.start + 1)` counts them. None for the number handed
                out, which is right with `num_workers=0`; workers ask for `num_workers * prefetch_factor` batches ahead
                of the loop, and those would be lost.

        Raises:
            UsageError: so many cannot have been consumed.
        """
        position = self._position
        if consumed is not None:
            position = whole("consumed", consumed, least=0)
            if not self._least <= position <= self._position:
                raise UsageError(
                    f"consumed={position}, but of epoch {self._epoch} batches {self._least} to {self._position} were "
                    "handed out by this sampler; expected a number between, counted from the beginning of the epoch "
                    "and not from where it was resumed: enumerate(loader, start=sampler.start + 1) does this"
                )
        return {
            "epoch": self._epoch,
            "position": position,
            "lengths": self._fingerprint,
            "settings": self._settings(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume with the batch that follows a saved state; nothing is left where its epoch was complete.

        Whoever iterates next, goes on: load after a rehearsal that goes through the same loader, not before it.

        Raises:
            UsageError: it is no state of such a sampler, or one of a sampler with other lengths or settings.
        """
        try:
            epoch, position = whole("epoch", state["epoch"], least=0), whole("position", state["position"], least=0)
            saved = {"lengths": state["lengths"], **state["settings"]}
        except (KeyError, TypeError, UsageError):
            raise UsageError(
                f"what was loaded is not the state of a TokenBudgetBatchSampler but {brief(state)}; expected what its "
                "state_dict() returned"
            ) from None
        own = {"lengths": self._fingerprint, **self._settings()}
        differing = [name for name in own if name not in saved or saved[name] != own[name]]
        if differing:
            there = ", ".join(f"{name}={brief(saved.get(name))}" for name in differing)
            here = ", ".join(f"{name}={brief(own[name])}" for name in differing)
            raise UsageError(
                f"the state was saved with {there}, and this sampler has {here}, so its batches differ; make the "
                "sampler as it was, or start the next epoch with set_epoch"
            )
        if position > len(self):
            raise UsageError(
                f"the state has position {position}; expected at most {len(self)}, the batches of an epoch"
            )
        self._go_to(epoch, position)

    def _go_to(self, epoch: int, position: int) -> None:
        self._epoch = epoch
        self._start = self._position = self._least = position
        self._iteration += 1  # what an iteration from before hands out counts no more

    def _laid_out(self) -> Layout:
        padded = -(-self._lengths // self._bucket) * self._bucket
        too_long = np.flatnonzero(padded > self._max_tokens)
        kept = np.arange(len(padded))
        if len(too_long) and self._oversize == "error":
            first, longest = int(too_long[0]), int(padded.max())
            others = f" (and {len(too_long) - 1} more like it)" if len(too_long) > 1 else ""
            raise UsageError(
                f"item {first} has length {self._lengths[first]}, padded to {padded[first]}{others}; expected at most "
                f"max_tokens={self._max_tokens}: shorten it, pass max_tokens={longest}, or pass oversize='alone' for a "
                "batch of its own or 'drop' to leave it out"
            )
        if self._oversize == "drop":
            kept = np.delete(kept, too_long)
            if not len(kept):
                raise UsageError(
                    f"all {len(padded)} items are longer than max_tokens={self._max_tokens} and left out; expected one "
                    f"to be left: pass max_tokens of {int(padded.min())} or more"
                )
        layout = Layout.cut(padded[kept], kept, self._max_tokens, self._max_items)
        if not layout.rounds(self._ranks, drop_last=self._drop_last):
            raise UsageError(
                f"{len(layout.starts)} batches for num_replicas={self._ranks} with drop_last=True leave none; expected "
                "a batch for each rank: lower max_tokens, or pass drop_last=False"
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
