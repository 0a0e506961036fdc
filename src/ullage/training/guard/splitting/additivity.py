"""Tests whether the loss of a batch is the weighted sum of the losses of its parts. Only then may it be split.

The batch and its parts are computed in float64 (on a GPU in float32), without autocast, so that rounding hides nothing.
The losses are compared before each split. The gradients of all parameters are compared in the first splits of a shape,
for each change of the operators that compute the loss, and again from time to time.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch

from ullage.gpu.emulator.emulate import CARD_VARIABLE
from ullage.training.guard.memory.oom import read_oom
from ullage.training.guard.memory.room import Room
from ullage.training.guard.signals import Signals
from ullage.training.guard.splitting.batch import BatchPart, Cutter, Form, Shape, Weighting, key_of
from ullage.training.guard.splitting.hooks import HookNotes
from ullage.training.guard.splitting.norm import BatchNorms
from ullage.training.guard.splitting.precise import Precise, WideLayers, exact_products
from ullage.training.guard.splitting.settled import Settled
from ullage.training.guard.splitting.sketch import sketch_of
from ullage.training.guard.state.rewind import Rewind
from ullage.training.ownership.failure import clear_frames

DIFFERS: Final = "differs from the sum over their parts"
"""The words of the reason that a trial has proven: a batch must not be split even if its items seem independent."""
_LOSS_TOLERANCES: Final = {torch.float64: 1e-9, torch.float32: 2e-5}
_GRADIENT_TOLERANCES: Final = {torch.float64: 1e-6, torch.float32: 1e-3}
"""The largest relative difference that rounding can cause, for the type in which a trial computes."""
_ROUNDINGS: Final = 3
"""A gradient is rounded to the type of its parameter. The tolerance is at least this many times its precision."""
_NEGLIGIBLE: Final = 1e-3
"""A gradient whose size is this part of the largest gradient's, or less, may be rounding alone."""
# The absolute loss below which the tolerance for losses does not shrink further. A small loss may be a difference of
# large numbers, and then has their rounding errors.
_SMALLEST: Final = 1e-2
_PROOFS: Final = 32
"""Gradients are compared in so many splits of a shape, and then in every split with a multiple of this number."""
_SCALE: Final = 0.5
"""The factor of a part's loss in a trial. A gradient that ignores it would be added once for each part."""
_FEWEST_ELEMENTS: Final = 1 << 22
"""The least number of gradient elements for which a trial runs backward once."""
_COUNTS_AGREE: Final = 1e-6
_NAMES: Final = 3


Weightings = tuple[Weighting | int, ...]
"""Weightings of parts. An integer stands for the weighting by one of the numbers by which the loss divides."""


@dataclass(frozen=True, slots=True)
class _TrialRun:
    value: torch.Tensor
    """The loss, or one row of numbers for the gradient of each parameter, in float64."""
    changed: list[str]
    draws_elsewhere: bool
    unsettled: set[str]
    operators: int
    dtype: torch.dtype
    """The type in which the trial computed."""
    counts: list[float]
    """The numbers by which the computation divides. One of them may be the denominator of a mean over counted terms."""


class _Refused(Exception):
    """An error whose text says why a batch must not be split."""


class _DoesNotFit(Exception):
    """A test run ran out of memory."""


@dataclass(slots=True, kw_only=True)
class Trials:
    """Runs a loss function on a batch and on its parts as a test, and undoes each run."""

    rewind: Rewind
    cutter: Cutter
    norms: BatchNorms
    room: Room
    signals: Signals
    proven: dict[tuple[Shape, int], tuple[Weighting | int, int]] = field(default_factory=dict)
    """Maps a batch shape and the operators of its loss to the weighting of the parts, and the number of its proofs."""
    trials: int = 0
    elements: int = 1 << 28
    """The number of gradient elements that a trial computes at once. It is reduced if they do not fit."""
    has_drawn: bool = False
    """Whether a test run has used random numbers."""

    def why_not_cut(
        self, batch: Any, loss_of: Callable[[Any], Any], form: Form, size: int, pieces: Sequence[BatchPart]
    ) -> str | None:
        """Return the reason why a batch must not be split into parts of `size` items. None if it may be split.

        If it may be split, the weights of the pieces that will be run are set in `cutter`.
        """
        if form.items is None or form.items < 2:
            return "it has a single item"
        self.trials += 1
        try:
            fitting, operators = self._compare_losses(batch, loss_of, form.items, size)
            proof = self.proven.get((form.shape, operators))
            # A coupling of items may be zero at first, as that of rewards that are all equal.
            is_due = proof is None or proof[1] < _PROOFS or self.trials % _PROOFS == 0 or proof[0] not in fitting
            if proof is None or is_due:
                weighting = self._compare_gradients(batch, loss_of, form.items, size, fitting)
                self.proven[form.shape, operators] = proof = (weighting, proof[1] + 1 if proof is not None else 1)
            weighting = proof[0]
            if isinstance(weighting, Weighting):
                self.cutter.weigh(weighting)
            else:
                counts = [self._count_of(batch, loss_of, piece, weighting) for piece in pieces]
                self.cutter.weigh(Weighting.COUNTS, dict(zip(map(key_of, pieces), counts, strict=True)))
        except _Refused as refusal:
            return str(refusal)
        return None

    def _count_of(self, batch: Any, loss_of: Callable[[Any], Any], part: BatchPart, place: int) -> float:
        """Return the denominator of the loss of a part. If the part does not fit, add those of its halves."""
        try:
            counts = self._loss(self.cutter.select(batch, part), loss_of).counts
        except _DoesNotFit:
            halves = self.cutter.pieces_of(part, -(-(part.items or 1) // 2))
            if len(halves) < 2:
                raise _Refused(
                    "not even the loss of one item fits, so the weights of the parts are not known"
                ) from None
            return sum(self._count_of(batch, loss_of, half, place) for half in halves)
        if place >= len(counts):
            raise _Refused("the loss of a part divides by fewer numbers, so the weights of the parts are not known")
        return counts[place]

    def why_not_computed_again(self, batch: Any, loss_of: Callable[[Any], Any], part: BatchPart) -> str | None:
        """Return the reason why activation checkpointing must not be used for a batch. None if it may be used."""
        try:
            trial = self._loss(self.cutter.select(batch, part), loss_of)
        except _DoesNotFit:
            return "even a forward pass without gradients does not fit"
        except _Refused as refusal:
            return str(refusal)
        if trial.changed:
            return f"forward changes {_listed(trial.changed)}, so a second forward would start from changed values"
        return (
            "forward draws random numbers from Python or numpy, which checkpointing does not repeat"
            if trial.draws_elsewhere
            else None
        )

    def _compare_losses(
        self, batch: Any, loss_of: Callable[[Any], Any], items: int, size: int
    ) -> tuple[Weightings, int]:
        """Return the weightings of the parts with which their losses add up, and a hash of the loss's operators."""
        # if the whole batch does not fit, overlapping windows of the batch are compared
        width = items
        while True:
            fitting: Weightings = self.cutter.weightings
            operators = 0
            try:
                for window in _windows(items, width):
                    run = partial(self._loss, loss_of=loss_of)
                    fitting, operators = self._compare(batch, window, min(size, -(-width // 2)), run, fitting)
                return fitting, operators
            except _DoesNotFit:
                if width == 2:
                    raise _Refused(
                        "not even the loss of two items fits, so it cannot be tested whether the loss may be split"
                    ) from None
                width = -(-width // 2)

    def _compare_gradients(
        self, batch: Any, loss_of: Callable[[Any], Any], items: int, size: int, fitting: Weightings
    ) -> Weighting | int:
        whole = partial(self._gradients, loss_of=loss_of, scale=1.0)
        part = partial(self._gradients, loss_of=loss_of, scale=_SCALE)
        width = min(max(size, 2), items)
        while True:
            try:
                proven = fitting
                for window in _windows(items, width):
                    proven, _ = self._compare(batch, window, -(-width // 2), whole, proven, part)
                return proven[0]
            except _DoesNotFit:
                if width > 2:
                    width = -(-width // 2)
                elif self.elements > _FEWEST_ELEMENTS:
                    self.elements //= 8
                else:
                    raise _Refused(
                        "not even the gradients of two items fit, so it cannot be tested whether they add up"
                    ) from None

    def _compare(
        self,
        batch: Any,
        window: BatchPart,
        size: int,
        trial_of: Callable[[Any], _TrialRun],
        fitting: Weightings,
        part_of: Callable[[Any], _TrialRun] | None = None,
    ) -> tuple[Weightings, int]:
        assert window.items is not None
        whole = trial_of(self.cutter.select(batch, window))
        if whole.changed:
            raise _Refused(f"forward changes {_listed(whole.changed)}, and would change it again in each part")
        pieces = self.cutter.pieces_of(window, size)
        runs = [(part_of or trial_of)(self.cutter.select(batch, piece)) for piece in pieces]
        if whole.value.device.type == "cuda" and os.environ.get(CARD_VARIABLE):
            # An emulated GPU computes no values, and so no counts of targets.
            return tuple(one for one in fitting if one is not Weighting.COUNTS)[:1], whole.operators
        adding_up = tuple(
            weighting
            for weighting in _expanded(fitting, [run.counts for run in (whole, *runs)])
            if (shares := self._shares(weighting, batch, window, pieces, whole, runs)) is not None
            and self._add_up(whole, runs, shares)
        )
        if adding_up:
            return adding_up, whole.operators
        what = "loss" if whole.value.dim() == 0 else "gradient"
        why = f", which also draws random numbers ({', '.join(sorted(whole.unsettled))})" if whole.unsettled else ""
        raise _Refused(
            f"the {what} of {window.items} items {DIFFERS}{why}; the loss may compare items with each other, or be a "
            "mean over something other than items or counted terms"
        )

    def _shares(
        self,
        weighting: Weighting | int,
        batch: Any,
        window: BatchPart,
        pieces: Sequence[BatchPart],
        whole: _TrialRun,
        runs: Sequence[_TrialRun],
    ) -> list[float] | None:
        """Return the weight of each part in a window of the batch; None if the weighting does not apply."""
        match weighting:
            case Weighting.GIVEN:
                total = self.cutter.share_of(batch, window)
                return [self.cutter.share_of(batch, piece) / total for piece in pieces]
            case int():
                total = whole.counts[weighting] if weighting < len(whole.counts) else 0.0
                if any(len(run.counts) != len(whole.counts) for run in runs) or not total > 0:
                    return None
                counts = [run.counts[weighting] for run in runs]
                if min(counts) < 0 or not abs(sum(counts) - total) <= _COUNTS_AGREE * total:
                    return None
                return [count / total for count in counts]
            case Weighting.SUM:
                return [1.0] * len(pieces)
        return [(piece.items or 0) / (window.items or 1) for piece in pieces]

    def _add_up(self, whole: _TrialRun, runs: Sequence[_TrialRun], shares: Sequence[float]) -> bool:
        total, sizes = torch.zeros_like(whole.value), whole.value.abs()
        for run, share in zip(runs, shares, strict=True):
            if share:
                total = total + run.value * share
                sizes = sizes.maximum((run.value * share).abs())
        dtype = max((whole, *runs), key=lambda run: torch.finfo(run.dtype).eps).dtype
        if whole.value.dim() == 0:
            within = _LOSS_TOLERANCES[dtype] * (sizes + _SMALLEST)
        else:
            size = torch.linalg.vector_norm(sizes, dim=1)
            within = self._roundings(dtype).to(size.device) * (size + _NEGLIGIBLE * size.max())
        gap = (whole.value - total).abs()
        gap = gap if gap.dim() == 0 else torch.linalg.vector_norm(gap, dim=1)
        if bool((gap <= within).all()):
            return True
        return bool(not whole.value.isfinite().all() and not total.isfinite().all())

    def _trained(self) -> list[torch.Tensor]:
        return [one for one in self.rewind.parameters if one.requires_grad and not torch.nn.parameter.is_lazy(one)]

    def _roundings(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the tolerance for the gradient of each parameter."""
        trained = self._trained()
        least = _GRADIENT_TOLERANCES[dtype]
        return torch.tensor(
            [max(least, _ROUNDINGS * torch.finfo(one.dtype).eps) for one in trained] or [least], dtype=torch.float64
        )

    def _loss(self, batch: Any, loss_of: Callable[[Any], Any]) -> _TrialRun:
        try:
            return self._tried(lambda _: _value_of(loss_of(batch)), torch.no_grad)
        except _Refused:  # a loss that computes gradients itself
            return self._tried(lambda _: _value_of(loss_of(batch)), torch.enable_grad)

    def _gradients(self, batch: Any, loss_of: Callable[[Any], Any], scale: float) -> _TrialRun:
        parameters = self._trained()

        def gradients(notes: HookNotes) -> torch.Tensor:
            result = loss_of(batch)
            if notes.has_registered:
                raise _Refused(
                    "the loss function registers a hook on a gradient, which would act on each part of the batch"
                )
            loss = result[0] if isinstance(result, tuple) else result
            if not loss.requires_grad or not parameters:
                return torch.zeros(max(len(parameters), 1), 1, dtype=torch.float64)
            rows = []
            chunks = list(_chunks(parameters, self.elements))
            for index, chunk in enumerate(chunks):
                is_last = index == len(chunks) - 1
                found = torch.autograd.grad(loss * scale, chunk, allow_unused=True, retain_graph=not is_last)
                rows += [sketch_of(one) / scale for one in found]
            return torch.stack([row.to(rows[0].device) for row in rows])

        return self._tried(gradients, torch.enable_grad)

    def _tried(
        self, run: Callable[[HookNotes], torch.Tensor], mode: Callable[[], AbstractContextManager[Any]]
    ) -> _TrialRun:
        wide = torch.float64 if all(device.type == "cpu" for device in self.room.devices) else torch.float32
        precise = Precise(wide)
        try:
            with exact_products():
                return self._run(run, mode, precise)
        except _Refused:
            if precise.has_narrow:
                raise
        # An operator without an implementation for the wide type, in a computation that is in float32 anyway.
        return self._run(run, mode, None)

    def _run(
        self,
        run: Callable[[HookNotes], torch.Tensor],
        mode: Callable[[], AbstractContextManager[Any]],
        precise: Precise | None,
    ) -> _TrialRun:
        failure: Exception | None = None
        settled = Settled()
        trial = None
        try:
            self.rewind.record(is_fresh=False)
            with (
                self.norms.standing_still(),
                mode(),
                settled,
                precise if precise is not None else nullcontext(),
                WideLayers(precise.wide) if precise is not None else nullcontext(),
                HookNotes() as notes,
                self.signals.released(),  # the last: Ctrl-C at the end of another context would leave it entered
            ):
                value = run(notes)
            dtype = precise.wide if precise is not None else value.dtype
            trial = _TrialRun(
                value.double(),
                self.rewind.changed(),
                self.rewind.random_state.are_others_used(),
                settled.unsettled,
                settled.operators,
                torch.float64 if dtype is torch.float64 and value.dtype is torch.float64 else torch.float32,
                precise.counts if precise is not None else [],
            )
        except Exception as error:
            failure = error
        except BaseException:
            self.rewind.restore()
            raise
        if failure is not None:
            clear_frames(failure)
        with self.room.retrying():
            self.rewind.restore()
        self.has_drawn |= settled.has_drawn
        if trial is not None:
            self.has_drawn |= trial.draws_elsewhere
            return trial
        assert failure is not None
        if isinstance(failure, _Refused):
            raise failure
        if read_oom(failure, is_on_host=self.room.is_on_host) is None:
            text = " ".join(str(failure).split())[:200]
            raise _Refused(
                f"the loss function failed in a test run on parts of the batch ({type(failure).__name__}: {text})"
            )
        self.room.collect()
        raise _DoesNotFit


def _expanded(fitting: Weightings, counts: Sequence[Sequence[float]]) -> Iterator[Weighting | int]:
    """Yield the weightings, and for `COUNTS` the places of numbers that differ.

    Args:
        fitting: weightings of parts.
        counts: the numbers by which the loss of the whole and of each part divides.
    """
    for weighting in fitting:
        if weighting is not Weighting.COUNTS:
            yield weighting
        elif len(set(map(len, counts))) == 1:
            columns = reversed(list(enumerate(zip(*counts, strict=True))))  # of equal columns, the first place is kept
            yield from sorted({column: place for place, column in columns}.values())


def _chunks(parameters: Sequence[torch.Tensor], elements: int) -> Iterator[list[torch.Tensor]]:
    """Yield the parameters in groups whose gradients have a limited number of elements."""
    chunk: list[torch.Tensor] = []
    for parameter in parameters:
        if chunk and sum(map(torch.Tensor.numel, chunk)) + parameter.numel() > elements:
            yield chunk
            chunk = []
        chunk.append(parameter)
    yield chunk


def _windows(items: int, width: int) -> Iterator[BatchPart]:
    # each window overlaps the next by half, so that each item is compared with its neighbours
    if width >= items:
        yield BatchPart(items=items)
        return
    for start in range(0, items - 1, max(width // 2, 1)):
        yield BatchPart(start=start, items=min(width, items - start))
        if start + width >= items:
            return


def _value_of(result: Any) -> torch.Tensor:
    loss = result[0] if isinstance(result, tuple) and len(result) == 2 else result
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(f"it returned {type(loss).__name__}")
    return loss.detach().reshape(())


def _listed(names: Sequence[str]) -> str:
    few = list(dict.fromkeys(names))
    return ", ".join(few[:_NAMES]) + (f" and {len(few) - _NAMES} more" if len(few) > _NAMES else "")
