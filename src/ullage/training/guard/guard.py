"""`ullage.Guard`: runs training steps, and retries a step with less memory if it runs out of memory.

Forward and backward can be undone, so they are run again. The optimizer's step cannot be undone, so it is resumed at
the operation that failed.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, Final, Literal, TypeVar

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ullage.base.errors import UsageError
from ullage.base.public import public
from ullage.base.units import GIB
from ullage.training.guard.event import Event, EventLog
from ullage.training.guard.memory.oom import read_oom
from ullage.training.guard.memory.oom_report import add_oom_report
from ullage.training.guard.memory.room import Room
from ullage.training.guard.optimizer_step.update import Update
from ullage.training.guard.ranks import RankError, Ranks, ranks_of
from ullage.training.guard.rehearsal import Cost, Rehearsal, rehearse
from ullage.training.guard.retries.forecast import Forecast
from ullage.training.guard.retries.ladder import Ladder, LossOf
from ullage.training.guard.retries.memory_savers import MemorySavers
from ullage.training.guard.retries.plan import Plans
from ullage.training.guard.signals import Signals
from ullage.training.guard.splitting.additivity import Trials
from ullage.training.guard.splitting.batch import Cutter, Shape, Weight
from ullage.training.guard.splitting.norm import BatchNorm, BatchNorms
from ullage.training.guard.state.copies import parameters_in
from ullage.training.guard.state.rewind import Rewind

# The number of training steps after which the allocator's cache is emptied once. This is done only if
# `torch.backends.cudnn.benchmark` is on. By then, cuDNN has tried its algorithms and no longer needs their workspaces.
_WARM: Final = 3

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


@public
class Guard:
    """Runs training steps that survive out-of-memory errors and still compute the gradient of the full batch.

    Example:
        guard = ullage.Guard(model, optimizer)
        for batch in loader:
            loss = guard.step(batch, lambda b: loss_fn(model(b["x"]), b["y"]))

    Args:
        model: the module to train, or a list of modules.
        optimizer: the optimizer of the parameters, or a list of optimizers that are stepped together.
        scaler: the gradient scaler of a training loop with automatic mixed precision. The guard unscales gradients, and
            steps and updates the scaler.
        scheduler: a learning-rate scheduler, or a list of them. The guard steps them after each optimizer step.
        batch_dim: the dimension of the batch's tensors that counts items.
        reduction: "mean" if the loss is a mean over items, "sum" if it is a sum.
        weight: a function that returns how many terms the loss of a batch averages over, such as the number of pixels
            in a mask. It is needed if the loss is a mean over anything but items or the targets of a cross entropy,
            and with `splittable=True` for these too. It is called with the batch and with its parts, and only if a
            batch is split.
        splittable: True if the loss of each item is independent of the other items, False if it is not (in-batch
            negatives). By default each step that has to split tests this in float64 (on a GPU in float32), and finds
            the weights of the parts. If this is True, the loss has to be a mean over items, or the mean that `weight`
            counts, or a sum (`reduction`). If the tensors of a batch differ in size along `batch_dim`, the batch is
            split only if this is True. Then only tensors with the size of the first tensor are cut, and lists with one
            element for each item.
        batchnorm: "freeze" to normalise with the running statistics in every step, whether or not the batch is split;
            "allow" to let a split batch change the statistics without a warning.
        clip_grad_norm: the maximum norm of all gradients together, as in `torch.nn.utils.clip_grad_norm_`.
        before_step: a function that is called after the last backward and before the optimizer's step, with unscaled
            gradients.
        checkpoint: names of modules ("layers.*") on which the guard may use activation checkpointing if a single item
            does not fit.
        offload: whether the guard may keep tensors that forward saves in host memory if a single item does not fit.
        pinned_bytes: the maximum number of bytes of that host memory that may be page-locked.
        backward: a function that is called with the loss in place of `loss.backward()`.
        timeout: the maximum time that a rank waits for the other ranks (DistributedDataParallel, FSDP) before it
            raises an error. Every rank has to create its guard, because the constructor creates the process group that
            the ranks use to agree.
        log: a function that is called with one line for each out-of-memory error; by default the line is a warning of
            the logger "ullage.guard".

    Raises:
        UsageError: an argument has a wrong type or value.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer | Sequence[Optimizer],
        *,
        scaler: GradScaler | None = None,
        scheduler: Any = None,
        batch_dim: int = 0,
        reduction: Literal["mean", "sum"] = "mean",
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
        self._modules = _several(model, nn.Module, "model")
        self._optimizers = _several(optimizer, Optimizer, "optimizer")
        self._schedulers = list(scheduler) if isinstance(scheduler, list | tuple) else [scheduler] if scheduler else []
        _check(self._optimizers, self._schedulers, batch_dim, reduction, batchnorm, clip_grad_norm)
        self._batch_dim = batch_dim
        self._cutter = Cutter(batch_dim, reduction, weight)
        self._splittable = splittable
        self._batchnorm = batchnorm
        self._backward = _backward_of(scaler, backward)
        self._savers_of = partial(MemorySavers, names=checkpoint, pinned_bytes=pinned_bytes)
        self._may_offload = offload
        self._event_log = EventLog(log or logging.getLogger("ullage.guard").warning)
        self._update_of = partial(
            Update,
            self._optimizers,
            log_event=self._event_log.add_pending,
            scaler=scaler,
            clip_grad_norm=clip_grad_norm,
            before_step=before_step,
        )
        self._plans = Plans()
        self._ranks: Ranks | None = None
        self._signals = Signals()
        self._split = 0
        self._shape: Shape | None = None
        self._is_updated = False
        self._assemble()
        self._ranks = ranks_of(self._modules, self._room, timeout)
        if self._ranks is not None:
            self._assemble()

    def _assemble(self) -> None:
        # called again when parameters or modules were added, and when parameters were moved to another device
        self._members = _members_of(self._optimizers)
        of_modules = (parameter for module in self._modules for parameter in module.parameters())
        parameters = list(dict.fromkeys(chain(of_modules, parameters_in(self._optimizers))))
        dropping = [one for one in self._optimizers if type(one).zero_grad is Optimizer.zero_grad]
        self._drops_all = set(parameters_in(dropping)).issuperset(parameters)
        self._room = Room(parameter.device for parameter in parameters)
        self._norms = BatchNorms(self._modules, self._batchnorm)
        rewind = Rewind(self._modules, parameters, self._room.devices, optimizers=self._optimizers)
        self._ladder = Ladder(
            room=self._room,
            rewind=rewind,
            norms=self._norms,
            trials=Trials(
                rewind=rewind, cutter=self._cutter, norms=self._norms, room=self._room, signals=self._signals
            ),
            signals=self._signals,
            savers=self._savers_of(self._modules),
            cutter=self._cutter,
            plans=self._plans,
            forecast=Forecast(self._room),
            backward=self._backward,
            is_splittable=self._splittable,
            may_offload=self._may_offload,
            log_event=self._event_log.add,
            ranks=self._ranks,
        )
        self._update = self._update_of(parameters, self._room)

    def step(self, batch: Batch, loss_of: Callable[[Batch], Loss], *, update: bool = True) -> Loss:
        """Run forward and backward for a batch and, if `update` is true, the optimizer's step.

        Gradients can be read after the optimizer's step. The following step sets them to None.

        Args:
            batch: a tensor, or any nesting of dicts, lists, tuples and dataclasses of tensors. `loss_of` gets the whole
                batch, or parts of it in the same containers. A batch that holds anything else is never split.
            loss_of: a function that computes the loss of a batch. It returns a tensor with one element, or a tuple of
                the loss and any other value.
            update: False for all but the last call of a gradient accumulation. The caller divides the loss by the
                number of calls, as usual.

        Returns:
            The detached loss of the whole batch. If `loss_of` returns a tuple: a tuple of that loss and the joined
            second values of all parts.

        Raises:
            torch.OutOfMemoryError: the batch does not fit in any way. Everything is as before the step, and notes on
                the error give the reason. If the optimizer's state does not fit, parameters and optimizer state are as
                before.
            RuntimeError: the step changed something that cannot be restored, so it is not retried; the error names it.
            UsageError: `loss_of` did not return a loss, or the batch holds an object that can be read only once, such
                as an iterator.
        """
        with self._signals.held():
            outcome: Loss = self._step(batch, loss_of, is_update=update)
        return outcome

    def _step(self, batch: Any, loss_of: Callable[[Any], Any], *, is_update: bool) -> Any:
        self._event_log.step += 1
        if self._members != _members_of(self._optimizers) or self._ladder.rewind.has_grown:
            self._assemble()
        drops_gradients = self._is_updated or self._event_log.step == 1
        is_fresh = self._is_updated and self._drop_gradients()
        try:
            climbed = self._ladder.climb(batch, loss_of, self._event_log.step, is_fresh=is_fresh)
            self._split = max(self._split, climbed.split)
            self._shape = climbed.form.shape
            if is_update:
                self._apply()
        except BaseException as error:
            self._report_failure(error)
            # Code that catches the error and continues starts a new accumulation: gradients of the failed step must not
            # be added to the next step's.
            self._is_updated = drops_gradients
            raise
        if self._event_log.step == _WARM and torch.backends.cudnn.benchmark:
            self._room.empty_cache()
        return self._ladder.outcome(climbed.done)

    def update(self) -> None:
        """Run the optimizer's step after gradients were accumulated with `update=False`.

        This clips the gradients, and steps the optimizers and schedulers.

        Raises:
            torch.OutOfMemoryError: the optimizer's state does not fit. No parameter has changed.
        """
        with self._signals.held():
            try:
                self._apply()
            except BaseException as error:
                self._report_failure(error)
                raise

    def _apply(self) -> None:
        if self._ranks is not None:
            split, self._split = self._ranks.agree(self._split), 0
            if split and self._shape is not None and self._splittable is not False:
                self._ladder.plans.adopt(self._shape, split)
            self._ranks.share()
        self._update.run()
        self._is_updated = True
        for scheduler in self._schedulers:
            scheduler.step()
        self._event_log.log_pending()

    def rehearse(
        self,
        batches: Iterable[Any],
        loss_of: LossOf,
        *,
        batch_of: Callable[[int], Any] | None = None,
        cost: Cost | None = None,
    ) -> Rehearsal:
        """Run the training step that needs the most memory, and undo it. Call this before training starts.

        The guard then knows in how many parts the batch has to be run, and PyTorch has reserved memory for the largest
        tensors, which avoids fragmentation. Parameters, gradients, buffers, optimizer state and random number states do
        not change. Every rank has to call this method.

        Args:
            batches: a data loader or a list of batches, which is iterated once; or a list of lengths, together with
                `batch_of`.
            loss_of: the loss function, as for `step`.
            batch_of: a function that returns a batch whose longest item has the given length.
            cost: a function that returns the cost of a batch. The batch with the highest cost is run. The default is
                the number of items times the number of elements of one item.

        Raises:
            UsageError: `batches` is empty, or holds lengths and `batch_of` is missing.
            torch.OutOfMemoryError: the heaviest batch does not fit in any way; notes on the error give the reason.
        """
        with self._signals.held():
            try:
                return rehearse(
                    self._ladder,
                    self._update,
                    batches,
                    loss_of,
                    batch_dim=self._batch_dim,
                    batch_of=batch_of,
                    cost=cost,
                    log=self._event_log.log,
                )
            except BaseException as error:
                self._report_failure(error)
                raise

    @contextmanager
    def phase(self) -> Iterator[None]:
        """Empty PyTorch's cache before and after other work on the GPU, such as evaluation.

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
        """The latest 1,000 out-of-memory errors that the guard has handled."""
        return self._event_log.events

    @property
    def total_norm(self) -> torch.Tensor | None:
        """The norm of all gradients together at the last clipping. None if nothing was clipped yet."""
        return self._update.total_norm

    def _report_failure(self, error: BaseException) -> None:
        if read_oom(error, is_on_host=self._room.is_on_host) is not None:
            add_oom_report(error, self._room)
        if self._ranks is not None and isinstance(error, Exception) and not isinstance(error, RankError):
            self._ranks.announce_failure()

    def _drop_gradients(self) -> bool:
        for optimizer in self._optimizers:
            if type(optimizer).zero_grad is Optimizer.zero_grad:  # equal to zero_grad(), without its profiler call
                for group in optimizer.param_groups:
                    for parameter in group["params"]:
                        parameter.grad = None
            else:
                optimizer.zero_grad()
        self._is_updated = False
        return self._drops_all


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
    return [
        (len(group["params"]), group["params"][0].device)
        for optimizer in optimizers
        for group in optimizer.param_groups
        if group["params"]
    ]


def _backward_of(
    scaler: GradScaler | None, backward: Callable[[torch.Tensor], Any] | None
) -> Callable[[torch.Tensor], Any]:
    run = backward or torch.Tensor.backward
    if scaler is None or not scaler.is_enabled():
        return run

    def run_scaled(loss: torch.Tensor) -> Any:
        if scaler._growth_tracker is None:
            scaler._scale = (
                None  # if a scale() call failed before it created the growth tracker, no later call would create it
            )
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
        raise UsageError(
            f"batch_dim={batch_dim!r} is not a dimension; expected an integer of 0 or more: the dimension that counts "
            "items"
        )
    if reduction not in ("mean", "sum"):
        raise UsageError(
            f"reduction={reduction!r} is not allowed; expected 'mean' or 'sum': how the losses of the items are "
            "combined"
        )
    if batchnorm not in ("freeze", "allow", None):
        raise UsageError(f"batchnorm={batchnorm!r} is not allowed; expected 'freeze', 'allow' or None")
    if clip_grad_norm is not None and not clip_grad_norm > 0:
        raise UsageError(f"clip_grad_norm={clip_grad_norm!r} is not allowed; expected a maximum norm above 0")
    for scheduler in schedulers:
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise UsageError(
                "scheduler is a ReduceLROnPlateau, whose step() needs a metric that a guard does not have; step it "
                "yourself"
            )
        if not callable(getattr(scheduler, "step", None)):
            raise UsageError(
                f"scheduler is of type {type(scheduler).__name__}; expected an object with a step() method, or a list "
                "of them"
            )
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UsageError(
                "optimizer is an LBFGS, which calls forward and backward itself any number of times, so it cannot be "
                "guarded; expected an optimizer whose step() needs no closure"
            )
