"""Parts of a batch, each with the share that its loss has in the loss of the whole batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from ullage.base.errors import UsageError
from ullage.training.guard.splitting.batch import (
    Form,
    Shape,
    even_parts,
    form_of,
    items_of,
    join,
    narrow,
    repacked,
    shape_of,
)

Weight = Callable[[Any], float]
_AGREES: Final = 1e-6
_FORMS: Final = 4096
"""The number of shapes whose forms are cached; the cache is emptied when it is full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPart:
    """The `items` items of a batch from `start` on; `items` is None if the batch's items cannot be counted."""

    start: int = 0
    items: int | None
    share: float | None = None
    """The factor for the loss of these items; None for the whole batch, whose loss is not changed."""
    finished: frozenset[tuple[int, int]] = frozenset()
    """The additions to gradients (see `rewind`) that a failed attempt at these items has already made."""


@dataclass(slots=True)
class Done:
    """The result of forward and backward of a part."""

    part: BatchPart
    loss: torch.Tensor
    """The part's loss, detached, multiplied by its share."""
    extra: Any
    is_pair: bool
    """Whether the loss function returned a tuple of the loss and something else, which is `extra`."""


class Cutter:
    """Cuts a batch into parts whose losses, each with its share, sum to the batch's."""

    def __init__(self, batch_dim: int, reduction: str, weight: Weight | None) -> None:
        self._dim = batch_dim
        self._reduction = reduction
        self._weight = weight
        self._forms: dict[Shape, tuple[Form, BatchPart]] = {}

    def form_and_whole(self, tensors: Sequence[torch.Tensor]) -> tuple[Form, BatchPart]:
        """Return the form of a batch with these tensors, and the part that is the whole of it."""
        known = self._forms.get(shape_of(tensors))
        if known is not None:
            return known
        if len(self._forms) >= _FORMS:
            self._forms.clear()
        form = form_of(tensors, self._dim)
        return self._forms.setdefault(form.shape, (form, BatchPart(items=form.items)))

    def select(self, batch: Any, part: BatchPart) -> Any:
        """Return the items of a part, in containers of their own."""
        if part.items is None or (part.start == 0 and part.items == items_of(batch, self._dim)):
            return repacked(batch)
        return narrow(batch, self._dim, part.start, part.items)

    def share_of(self, batch: Any, part: BatchPart) -> float:
        """Return the share that the loss of a part has in the loss of the batch."""
        total = items_of(batch, self._dim)
        if self._reduction == "sum" or part.items is None or total is None:
            return 1.0
        if self._weight is None:
            return part.items / total
        return float(self._weight(self.select(batch, part))) / float(self._weight(batch))

    def cut(self, batch: Any, part: BatchPart, size: int) -> list[BatchPart]:
        """Cut a part into parts of at most `size` items, all of the same size if possible.

        Raises:
            UsageError: the user's weights of the parts do not sum to the whole's.
        """
        if part.items is None or part.items <= size:
            return [part]
        length = -(-part.items // even_parts(part.items, -(-part.items // size)))
        pieces = [
            replace(part, start=part.start + start, items=min(length, part.items - start))
            for start in range(0, part.items, length)
        ]
        total = items_of(batch, self._dim)
        assert total is not None
        if self._reduction == "sum":
            return [replace(piece, share=1.0) for piece in pieces]
        if self._weight is None:
            return [replace(piece, share=piece.items / total) for piece in pieces if piece.items is not None]
        return self._weighted(batch, pieces, part, self._weight)

    def _weighted(self, batch: Any, pieces: list[BatchPart], part: BatchPart, weight: Weight) -> list[BatchPart]:
        whole = float(weight(batch))
        weights = [float(weight(narrow(batch, self._dim, piece.start, piece.items or 0))) for piece in pieces]
        expected = whole * (part.share if part.share is not None else self.share_of(batch, part))
        if whole <= 0 or min(weights) < 0 or abs(sum(weights) - expected) > _AGREES * whole:
            raise UsageError(
                f"weight returns {expected:g} for {part.items} items and, in sum, {sum(weights):g} for the "
                f"{len(pieces)} parts of them; expected a count above 0, such as of tokens, whose sum over the parts "
                "equals the whole's"
            )
        return [replace(piece, share=own / whole) for piece, own in zip(pieces, weights, strict=True)]

    def outcome(self, done: list[Done]) -> Any:
        """Return the loss of the whole batch, or a tuple of it and what the loss function returned with it."""
        loss = done[0].loss
        for one in done[1:]:
            loss = loss + one.loss  # not in place: what came with it may be the same tensor
        if not done[0].is_pair:
            return loss
        shares = [one.part.share or 0.0 for one in done]
        return loss, join([one.extra for one in done], [one.part.items or 0 for one in done], shares, self._dim)
