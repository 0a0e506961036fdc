"""Tests whether the loss of a batch is the weighted sum of the losses of its parts. Only then may it be split.

Forward is run without gradients on the batch and on its parts. Once for each shape, the gradients of a few parameters
are compared as well, because equal losses may have different gradients.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ullage.gpu.emulator.emulate import CARD_VARIABLE
from ullage.training.guard.memory.oom import read_oom
from ullage.training.guard.memory.room import Room
from ullage.training.guard.signals import Signals
from ullage.training.guard.splitting.batch import BatchPart, Cutter, Form, Shape
from ullage.training.guard.splitting.norm import BatchNorms
from ullage.training.guard.splitting.settled import Settled
from ullage.training.guard.state.rewind import Rewind
from ullage.training.ownership.failure import clear_frames

# Maps a dtype to the largest relative difference between two losses that rounding can cause. The dtype is the least
# precise one in the computation.
_TOLERANCES: Final = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
_TF32: Final = 1e-3
# The tolerance for gradients is this many times the tolerance for losses.
_GRADIENT: Final = 50
# The absolute loss below which the tolerance for losses does not shrink further. A small loss may be a difference of
# large numbers, and then has their rounding errors.
_SMALLEST: Final = 1e-2
# The maximum number of gradient elements that are compared, over all parameters.
_ELEMENTS: Final = 1 << 20
_NAMES: Final = 3


@dataclass(frozen=True, slots=True)
class _TrialRun:
    value: torch.Tensor
    changed: list[str]
    draws_elsewhere: bool
    unsettled: set[str]
    tolerance: float


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
    compared: set[Shape] = field(default_factory=set)
    """The batch shapes for which gradients were compared."""
    has_drawn: bool = False
    """Whether a test run has used random numbers."""

    def why_not_cut(self, batch: Any, loss_of: Callable[[Any], Any], form: Form, size: int) -> str | None:
        """Return the reason why a batch must not be split into parts of `size` items. None if it may be split."""
        if form.items is None or form.items < 2:
            return "it has a single item"
        try:
            self._compare_losses(batch, loss_of, form.items, size)
            if form.shape not in self.compared:
                self._compare_gradients(batch, loss_of, form.items, size)
                self.compared.add(form.shape)
        except _Refused as refusal:
            return str(refusal)
        return None

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

    def _compare_losses(self, batch: Any, loss_of: Callable[[Any], Any], items: int, size: int) -> None:
        # if the whole batch does not fit, overlapping windows of the batch are compared
        width = items
        while True:
            try:
                for window in _windows(items, width):
                    self._compare(batch, window, min(size, -(-width // 2)), lambda some: self._loss(some, loss_of), 1)
                return
            except _DoesNotFit:
                if width == 2:
                    raise _Refused(
                        "not even the loss of two items fits, so it cannot be tested whether the loss may be split"
                    ) from None
                width = -(-width // 2)

    def _compare_gradients(self, batch: Any, loss_of: Callable[[Any], Any], items: int, size: int) -> None:
        parameters = self._few_parameters()
        width = min(max(size, 2), items)
        while parameters:
            try:
                window = BatchPart(items=width)
                gradient = lambda some: self._gradients(some, loss_of, parameters)  # noqa: E731
                self._compare(batch, window, -(-width // 2), gradient, _GRADIENT)
                return
            except _DoesNotFit:
                if width == 2:
                    return
                width = -(-width // 2)

    def _few_parameters(self) -> list[torch.Tensor]:
        trained = [one for one in self.rewind.parameters if one.requires_grad and not torch.nn.parameter.is_lazy(one)]
        chosen: list[torch.Tensor] = []
        left = _ELEMENTS
        for parameter in sorted(trained, key=torch.Tensor.numel):
            if chosen and parameter.numel() > left:
                break
            chosen.append(parameter)
            left -= parameter.numel()
        return chosen

    def _compare(
        self, batch: Any, window: BatchPart, size: int, trial_of: Callable[[Any], _TrialRun], looseness: float
    ) -> None:
        assert window.items is not None
        whole = trial_of(self.cutter.select(batch, window))
        if whole.changed:
            raise _Refused(f"forward changes {_listed(whole.changed)}, and would change it again in each part")
        share = self.cutter.share_of(batch, window)
        pieces = self.cutter.cut(batch, window, size)
        total, sizes, tolerance = torch.zeros_like(whole.value), whole.value.abs() * abs(share), whole.tolerance
        for piece in pieces:
            if piece.share == 0:
                continue
            one = trial_of(self.cutter.select(batch, piece))
            total = total + one.value * (piece.share or 0.0)
            sizes = sizes.maximum(one.value.abs() * abs(piece.share or 0.0))
            tolerance = max(tolerance, one.tolerance)
        if whole.value.device.type == "cuda" and CARD_VARIABLE in os.environ:
            return  # an emulated GPU computes no values
        gap = torch.linalg.vector_norm(whole.value * share - total)
        size_of_all = torch.linalg.vector_norm(sizes)
        within = tolerance * looseness * (size_of_all + (_SMALLEST if whole.value.dim() == 0 else 0.0))
        if bool(gap <= within) or (not whole.value.isfinite().all() and not total.isfinite().all()):
            return
        what = "loss" if whole.value.dim() == 0 else "gradient"
        why = f", which also draws random numbers ({', '.join(sorted(whole.unsettled))})" if whole.unsettled else ""
        raise _Refused(
            f"the {what} of {window.items} items differs from the sum over their parts{why}; the loss may compare "
            "items with each other, or be a mean over something other than items"
        )

    def _loss(self, batch: Any, loss_of: Callable[[Any], Any]) -> _TrialRun:
        try:
            return self._tried(lambda: _value_of(loss_of(batch)), torch.no_grad())
        except _Refused:  # a loss that computes gradients itself
            return self._tried(lambda: _value_of(loss_of(batch)), torch.enable_grad())

    def _gradients(self, batch: Any, loss_of: Callable[[Any], Any], parameters: Sequence[torch.Tensor]) -> _TrialRun:
        def gradients() -> torch.Tensor:
            result = loss_of(batch)
            loss = result[0] if isinstance(result, tuple) else result
            if not loss.requires_grad:
                return torch.zeros(1, dtype=torch.float64)
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            flat = [
                torch.zeros(parameter.numel(), device=parameter.device, dtype=torch.float64)
                if one is None
                else (one.to_dense() if one.layout is not torch.strided else one).detach().reshape(-1)
                for one, parameter in zip(found, parameters, strict=True)
            ]
            return torch.cat([torch.view_as_real(one).reshape(-1) if one.is_complex() else one for one in flat])

        return self._tried(gradients, torch.enable_grad())

    def _tried(self, run: Callable[[], torch.Tensor], mode: AbstractContextManager[Any]) -> _TrialRun:
        failure: Exception | None = None
        settled = Settled()
        trial = None
        try:
            self.rewind.record(is_fresh=False)
            with self.norms.standing_still(), mode, settled, self.signals.released():
                value = run()
            trial = _TrialRun(
                value.double(),
                self.rewind.changed(),
                self.rewind.random_state.are_others_used(),
                settled.unsettled,
                _tolerance(settled.coarsest, value),
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
        if read_oom(failure, is_on_host=self.room.is_on_host) is None:
            text = " ".join(str(failure).split())[:200]
            raise _Refused(
                f"the loss function failed in a test run on parts of the batch ({type(failure).__name__}: {text})"
            )
        self.room.collect()
        raise _DoesNotFit


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


def _tolerance(coarsest: torch.dtype, value: torch.Tensor) -> float:
    dtype = max(coarsest, value.dtype, key=lambda one: torch.finfo(one).eps)
    tolerance = _TOLERANCES.get(dtype, _TOLERANCES[torch.bfloat16])
    is_on_card = value.device.type == "cuda" and torch.backends.cudnn.allow_tf32
    return max(tolerance, _TF32) if is_on_card and dtype is torch.float32 else tolerance


def _listed(names: Sequence[str]) -> str:
    few = list(dict.fromkeys(names))
    return ", ".join(few[:_NAMES]) + (f" and {len(few) - _NAMES} more" if len(few) > _NAMES else "")
