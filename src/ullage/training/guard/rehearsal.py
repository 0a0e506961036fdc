"""Runs the training step that needs the most memory before training starts, and undoes it."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Final

import torch

from ullage.base.errors import UsageError
from ullage.base.units import text_of_bytes
from ullage.training.guard.optimizer_step.update import Update
from ullage.training.guard.retries.ladder import Climb, Ladder, LossOf
from ullage.training.guard.splitting.batch import form_of

Cost = Callable[[Any], float]
_LOG_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The result of `Guard.rehearse`: the batch that needs the most memory, and its peak."""

    batches: int
    """The number of batches among which the heaviest was chosen."""
    items: int | None
    length: int
    """The number of elements of one item in the largest tensor of the batch: tokens of a sequence, or pixels of an
    image.
    """
    parts: int
    """The number of parts into which the guard has to split the batch."""
    has_tried_optimizers: bool
    """Whether memory for the optimizers' steps was allocated too. This is possible only for optimizers of
    `torch.optim`.
    """
    peak_allocated_bytes: int | None
    """The peak of allocated memory in this process, in bytes. None without a CUDA device."""
    peak_reserved_bytes: int | None

    def __str__(self) -> str:
        size = f"{self.items} items of {self.length:,}" if self.items is not None else "the heaviest batch"
        taken = "fits" if self.parts == 1 else f"is run in {self.parts} parts"
        peak = (
            f"; at most {text_of_bytes(self.peak_allocated_bytes)} allocated, "
            f"{text_of_bytes(self.peak_reserved_bytes)} reserved"
            if self.peak_allocated_bytes is not None and self.peak_reserved_bytes is not None
            else ""
        )
        return f"rehearsed with the heaviest of {self.batches} batches ({size}): it {taken}{peak}"


@dataclass(slots=True)
class _Heaviest:
    batches: int = 0
    by_cost: Any = None
    cost: float = -1.0
    by_length: Any = None
    length: int = -1


def rehearse(
    ladder: Ladder,
    update: Update,
    batches: Iterable[Any],
    loss_of: LossOf,
    *,
    batch_dim: int,
    batch_of: Callable[[int], Any] | None,
    cost: Cost | None,
    log: Callable[[str], Any],
) -> Rehearsal:
    """Run the step of the heaviest batch without changing parameters, and restore everything else.

    Raises:
        UsageError: `batches` is empty, or holds lengths and `batch_of` is missing.
        torch.OutOfMemoryError: the heaviest batch does not fit in any way.
    """
    with _everything_kept(ladder):
        with ladder.signals.released():
            heaviest = _heaviest_of(batches, batch_dim, batch_of, cost, log)
        chosen = [heaviest.by_cost]
        # The memory of attention grows with the square of the length: the batch with the longest items may need more
        # memory than the batch with the most tokens.
        if heaviest.by_length is not heaviest.by_cost or (ladder.ranks is not None and ladder.ranks.in_lockstep):
            chosen.append(heaviest.by_length)
        climbed: list[Climb] = []
        for batch in chosen:
            for parameter in ladder.rewind.parameters:
                parameter.grad = None
            climbed.append(ladder.climb(batch, loss_of, 0, is_fresh=True))
        has_tried = update.try_out()
    cards = [device for device in ladder.room.devices if device.type == "cuda"]
    form = form_of(heaviest.by_cost, batch_dim)
    return Rehearsal(
        batches=heaviest.batches,
        items=form.items,
        length=form.length,
        parts=max(len(one.done) for one in climbed),
        has_tried_optimizers=has_tried,
        peak_allocated_bytes=sum(map(torch.cuda.max_memory_allocated, cards)) if cards else None,
        peak_reserved_bytes=sum(map(torch.cuda.max_memory_reserved, cards)) if cards else None,
    )


def _heaviest_of(
    batches: Iterable[Any],
    batch_dim: int,
    batch_of: Callable[[int], Any] | None,
    cost: Cost | None,
    log: Callable[[str], Any],
) -> _Heaviest:
    found = _Heaviest()
    logged = time.monotonic()
    longest: int | None = None
    for batch in batches:
        found.batches += 1
        if isinstance(batch, Integral):
            longest = max(int(batch), longest or 0)
            continue
        form = form_of(batch, batch_dim)
        own = cost(batch) if cost is not None else float((form.items or 1) * form.length)
        if own > found.cost:
            found.by_cost, found.cost = batch, own
        if form.length > found.length:
            found.by_length, found.length = batch, form.length
        if time.monotonic() - logged > _LOG_SECONDS:
            logged = time.monotonic()
            log(f"rehearse: {found.batches} batches examined so far")
    if longest is not None:
        if batch_of is None:
            raise UsageError(
                "rehearse was given lengths but no batch_of=; expected batch_of=, a function that returns a batch of a "
                "given length, or batches instead of lengths"
            )
        found.by_cost = found.by_length = batch_of(longest)
    if not found.batches:
        raise UsageError(
            "rehearse was given no batches; expected a data loader, a list of batches, or a list of lengths"
        )
    return found


@contextmanager
def _everything_kept(ladder: Ladder) -> Iterator[None]:
    gradients = [parameter.grad for parameter in ladder.rewind.parameters]
    for parameter in ladder.rewind.parameters:
        parameter.grad = None
    ladder.rewind.record(is_fresh=True)
    restore = ladder.rewind.mark()
    try:
        yield
    finally:
        with ladder.room.retrying():
            restore()
        for parameter, gradient in zip(ladder.rewind.parameters, gradients, strict=True):
            parameter.grad = gradient
        ladder.rewind.commit()
        if ladder.ranks is not None:
            ladder.ranks.restart()
