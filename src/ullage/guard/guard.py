"""`ullage.Guard`: a training step that is taken back when memory runs out, and taken again in a way that fits.

A step has two stages. Forward and backward change nothing that cannot be put back, so they are simply run again, in
ever less memory (`ladder`). The optimizer's step writes parameters, so it is never begun again but brought to its end
(`update`).
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
from torch import nn
from torch.optim import Optimizer

from ullage._errors import UsageError
from ullage._units import GIB
from ullage.guard.batch import Shape
from ullage.guard.ease import Ease
from ullage.guard.event import Diary, Event
from ullage.guard.farewell import farewell
from ullage.guard.forecast import Forecast
from ullage.guard.ladder import Ladder, LossOf
from ullage.guard.norm import BatchNorm, BatchNorms
from ullage.guard.oom import read_oom
from ullage.guard.part import Cutter, Weight
from ullage.guard.plan import Plans
from ullage.guard.ranks import RankError, Ranks, ranks_of
from ullage.guard.rehearsal import Cost, Rehearsal, rehearse
from ullage.guard.rewind import Rewind
from ullage.guard.room import Room
from ullage.guard.update import Update

_WARM: Final = 3
"""Steps after which cuDNN has tried its algorithms, and with them workspaces that are not needed again."""


class Guard:
    """Takes training steps that survive running out of memory, with the gradient of the full batch.

    Example:
        guard = ullage.Guard(model, optimizer)
        for batch in loader:
            loss = guard.step(batch, lambda b: loss_fn(model(b["x"]), b["y"]))
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        scaler: torch.amp.GradScaler | None = None,
        scheduler: Any = None,
        batch_dim: int = 0,
        reduction: str = "mean",
        weight: Weight | None = None,
        splittable: bool | None = None,
        batchnorm: BatchNorm | None = None,
        clip_grad_norm: float | None = None,
        before_step: Callable[[], Any] | None = None,
        checkpoint: Sequence[str] = (),
        offload: bool = True,
        pinned_bytes: int = 4 * GIB,
        backward: Callable[[torch.Tensor], Any] | None = None,
        timeout: timedelta = timedelta(minutes=30),
        log: Callable[[str], Any] | None = None,
    ) -> None:
        """Guard the steps of a model and its optimizer; nothing is copied and nothing runs before the first step.

        Args:
            model: the module that is trained, or several.
            optimizer: what steps its parameters, or several, which step together.
            scaler: unscales, steps and updates as in a loop with automatic mixed precision.
            scheduler: stepped after each optimizer step; or several.
            batch_dim: the dimension along which items lie in the tensors of a batch.
            reduction: "mean" where the loss is a mean over items, "sum" where it is a sum.
            weight: for a mean over something else than items, such as tokens that are not padding: how many of them a
                batch, or a part of one, has. Only called when a batch is split.
            splittable: False where the loss of one item depends on the others (in-batch negatives). A batch whose
                tensors have several sizes along `batch_dim` is only cut where this is True: those of the first's are.
            batchnorm: "freeze" to normalise with the running statistics in every step, whole or split; "allow" to let
                a split change the statistics without a warning.
            clip_grad_norm: the largest norm of all gradients together, as in `torch.nn.utils.clip_grad_norm_`.
            before_step: called after the last backward and before the optimizer, with gradients unscaled.
            checkpoint: names of modules ("layers.*") that may be computed again in backward where one item does not
                fit.
            offload: whether what forward saves may be kept in the host's memory where one item does not fit.
            pinned_bytes: how much of that may be page-locked.
            backward: called instead of `loss.backward()`.
            timeout: how long a rank waits for the others (DistributedDataParallel, FSDP) before it raises. Every rank
                makes its guard, because the group in which they agree is made then.
            log: called with one line each time memory ran out; else the logger "ullage.guard" warns.

        Raises:
            UsageError: an argument is not what is expected.
        """
        self._modules = _several(model, nn.Module, "model")
        self._optimizers = _several(optimizer, Optimizer, "optimizer")
        self._schedulers = list(scheduler) if isinstance(scheduler, list | tuple) else [scheduler] if scheduler else []
        _check(self._optimizers, self._schedulers, batch_dim, reduction, batchnorm, clip_grad_norm)
        self._batch_dim = batch_dim
        self._cutter = Cutter(batch_dim, reduction, weight)
        self._splittable = splittable
        self._batchnorm = batchnorm
        self._backward = _backward_of(scaler, backward)
        self._of_update = _OfUpdate(scaler=scaler, clip_grad_norm=clip_grad_norm, before_step=before_step)
        self._of_ease = _OfEase(checkpoint=checkpoint, offload=offload, pinned_bytes=pinned_bytes)
        self._plans = Plans()
        self._ranks: Ranks | None = None
        self._diary = Diary(log or logging.getLogger("ullage.guard").warning)
        self._split = 0
        self._shape: Shape | None = None
        self._is_updated = False
        self._assemble()
        self._ranks = ranks_of(self._modules, self._room, timeout)
        if self._ranks is not None:
            self._assemble()

    def _assemble(self) -> None:
        """Put together what knows the parameters; again where some have joined, or have moved to another device."""
        self._members = _members_of(self._optimizers)
        parameters = _parameters_of(self._modules, self._optimizers)
        self._drops_all = _are_all_in(self._optimizers, parameters)
        self._room = Room(parameter.device for parameter in parameters)
        self._norms = BatchNorms(self._modules, self._batchnorm)
        self._ladder = Ladder(
            room=self._room,
            rewind=Rewind(self._modules, parameters, self._room.devices),
            norms=self._norms,
            ease=Ease(self._modules, self._of_ease.checkpoint, self._of_ease.pinned_bytes),
            cutter=self._cutter,
            plans=self._plans,
            forecast=Forecast(self._room),
            backward=self._backward,
            is_splittable=self._splittable,
            may_offload=self._of_ease.offload,
            tell=self._diary.tell,
            ranks=self._ranks,
        )
        self._update = Update(
            self._optimizers,
            parameters,
            self._room,
            self._diary.tell_later,
            scaler=self._of_update.scaler,
            clip_grad_norm=self._of_update.clip_grad_norm,
            before_step=self._of_update.before_step,
        )

    def step(self, batch: Any, loss_of: LossOf, *, update: bool = True) -> Any:
        """Run forward, backward and, where `update` is true, the optimizer's step.

        Gradients are set to None at the beginning of a step that follows an update: they can be looked at after one.

        Args:
            batch: a tensor or any nesting of dicts, lists, tuples, dataclasses of tensors; `loss_of` gets it whole, or
                in parts of the same form.
            loss_of: computes the loss of a batch, a tensor with one element; or a tuple of it and anything else.
            update: False for all but the last call of an accumulation; a loss is then divided by the caller, as ever.

        Returns:
            The loss of the whole batch, detached; or the tuple, its second element put together from the parts'.

        Raises:
            torch.OutOfMemoryError: nothing fits; everything is as before the step, and the error's notes say why. Where
                it is the optimizer's state that does not fit, parameters and that state are as before.
            UsageError: `loss_of` returns no loss.
        """
        self._diary.step += 1
        if self._members != _members_of(self._optimizers):
            self._assemble()
        begins_anew = self._is_updated or self._diary.step == 1
        is_fresh = self._is_updated and self._drop_gradients()
        try:
            climbed = self._ladder.climb(batch, loss_of, self._diary.step, is_fresh=is_fresh)
            if climbed.split > self._split:
                self._split = climbed.split
            self._shape = climbed.form.shape
            if update:
                self._apply()
        except BaseException as error:
            self._leave(error)
            # Whoever catches it and goes on begins anew: what this step has left of gradients is no part of the next.
            self._is_updated = begins_anew
            raise
        if self._diary.step == _WARM and torch.backends.cudnn.benchmark:
            self._room.empty_cache()
        return self._ladder.outcome(climbed.done)

    def update(self) -> None:
        """Apply the gradients that steps with `update=False` have left: clip, step the optimizers and schedulers.

        Raises:
            torch.OutOfMemoryError: the optimizer's state does not fit; no parameter has changed.
        """
        try:
            self._apply()
        except BaseException as error:
            self._leave(error)
            raise

    def _apply(self) -> None:
        if self._ranks is not None:
            split, self._split = self._ranks.agree(self._split), 0
            if split and self._shape is not None and self._splittable is not False:
                self._ladder.plans.adopt(self._shape, split)
            self._ranks.share()
        self._update.run()
        for scheduler in self._schedulers:
            scheduler.step()
        self._is_updated = True
        self._diary.say()

    def rehearse(
        self,
        batches: Iterable[Any],
        loss_of: LossOf,
        *,
        batch_of: Callable[[int], Any] | None = None,
        cost: Cost | None = None,
    ) -> Rehearsal:
        """Take the heaviest step first, without effect: forward, backward, and what the optimizer makes.

        In how many parts it has to be taken is known from then on, and PyTorch's cache has segments that the largest
        shapes fit into, which is the cure for lengths that vary. Parameters, gradients, buffers, optimizer state and
        random numbers are as before. Every rank has to call it.

        Args:
            batches: a loader or a list, which is gone through once; or lengths, with `batch_of`.
            loss_of: as for `step`.
            batch_of: makes the batch whose longest item has a length.
            cost: how heavy a batch is; its items times the elements of one, if left out.

        Raises:
            UsageError: there is no batch, or lengths come without `batch_of`.
            torch.OutOfMemoryError: the heaviest batch fits in no way; the error's notes say why.
        """
        try:
            return rehearse(
                self._ladder,
                self._update,
                batches,
                loss_of,
                batch_dim=self._batch_dim,
                batch_of=batch_of,
                cost=cost,
                tell=self._diary.log,
            )
        except BaseException as error:
            self._leave(error)
            raise

    @contextmanager
    def phase(self) -> Iterator[None]:
        """Give PyTorch's cache back before and after something with other shapes: evaluation, or saving.

        Example:
            with guard.phase(), torch.no_grad():
                evaluate(model)
        """
        self._room.empty_cache()
        try:
            yield
        finally:
            self._room.empty_cache()

    @property
    def events(self) -> deque[Event]:
        """What happened, the latest thousand."""
        return self._diary.events

    @property
    def total_norm(self) -> torch.Tensor | None:
        """The norm of all gradients together before they were clipped the last time."""
        return self._update.total_norm

    def _leave(self, error: BaseException) -> None:
        """Add the report to an error of memory that leaves the guard, and tell the other ranks of any error."""
        if read_oom(error, is_on_host=self._room.is_on_host) is not None:
            farewell(error, self._room)
        if self._ranks is not None and isinstance(error, Exception) and not isinstance(error, RankError):
            self._ranks.leave()

    def _drop_gradients(self) -> bool:
        """Set gradients to None; return whether that is known to be all of them."""
        for optimizer in self._optimizers:
            if type(optimizer).zero_grad is Optimizer.zero_grad:  # the same without its profiling
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        parameter.grad = None
            else:
                optimizer.zero_grad()
        self._is_updated = False
        return self._drops_all


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfUpdate:
    scaler: torch.amp.GradScaler | None
    clip_grad_norm: float | None
    before_step: Callable[[], Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfEase:
    checkpoint: Sequence[str]
    offload: bool
    pinned_bytes: int


def _several(value: Any, kind: type, name: str) -> list[Any]:
    several = list(value) if isinstance(value, list | tuple) else [value]
    for one in several:
        if not isinstance(one, kind):
            raise UsageError(
                f"{name} is of type {type(one).__name__}; expected a torch {kind.__name__} or a list of them"
            )
    if not several:
        raise UsageError(f"{name} is an empty list; expected a torch {kind.__name__} or a list of them")
    return several


def _members_of(optimizers: Sequence[Optimizer]) -> list[tuple[int, torch.device]]:
    """Return what changes when parameters join an optimizer or move: how many a group has, and where its first is."""
    return [
        (len(group["params"]), group["params"][0].device)
        for optimizer in optimizers
        for group in optimizer.param_groups
        if group["params"]
    ]


def _parameters_of(modules: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> list[nn.Parameter]:
    """Return every parameter of modules and optimizers, each once."""
    of_modules = [parameter for module in modules for parameter in module.parameters()]
    return list(
        dict.fromkeys(
            [
                *of_modules,
                *(one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]),
            ]
        )
    )


def _are_all_in(optimizers: Sequence[Optimizer], parameters: Sequence[nn.Parameter]) -> bool:
    """Tell whether optimizers drop the gradients of all of these parameters."""
    dropped = {
        id(parameter)
        for optimizer in optimizers
        if type(optimizer).zero_grad is Optimizer.zero_grad
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    return dropped.issuperset(map(id, parameters))


def _backward_of(
    scaler: torch.amp.GradScaler | None, backward: Callable[[torch.Tensor], Any] | None
) -> Callable[[torch.Tensor], Any]:
    run = backward or torch.Tensor.backward
    if scaler is None or not scaler.is_enabled():
        return run

    def run_scaled(loss: torch.Tensor) -> Any:
        if scaler._growth_tracker is None:
            scaler._scale = None  # an attempt that failed between the two leaves a scaler that never makes the second
        return run(scaler.scale(loss))

    return run_scaled


def _check(
    optimizers: Sequence[Optimizer],
    schedulers: Sequence[Any],
    batch_dim: object,
    reduction: str,
    batchnorm: object,
    clip_grad_norm: float | None,
) -> None:
    if not isinstance(batch_dim, int) or isinstance(batch_dim, bool) or batch_dim < 0:
        raise UsageError(f"batch_dim={batch_dim!r}; expected the dimension along which items lie, 0 or more")
    if reduction not in ("mean", "sum"):
        raise UsageError(
            f"reduction={reduction!r}; expected 'mean' or 'sum': how the loss is made of those of its items"
        )
    if batchnorm not in ("freeze", "allow", None):
        raise UsageError(f"batchnorm={batchnorm!r}; expected 'freeze' or 'allow', or leave it out to be warned")
    if clip_grad_norm is not None and not clip_grad_norm > 0:
        raise UsageError(f"clip_grad_norm={clip_grad_norm!r}; expected a norm above 0")
    for scheduler in schedulers:
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise UsageError("ReduceLROnPlateau steps by a metric, which a guard does not have; step it yourself")
        if not callable(getattr(scheduler, "step", None)):
            raise UsageError(f"scheduler is of type {type(scheduler).__name__}; expected one with a step(), or a list")
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UsageError(
                "LBFGS runs forward and backward itself, as often as it likes, and cannot be guarded; expected an "
                "optimizer whose step needs no closure"
            )
