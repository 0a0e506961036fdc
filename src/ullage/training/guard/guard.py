"""`ullage.Guard`: a training step that is undone when memory runs out, and retried in a way that fits.

A step has two stages. Everything that forward and backward change can be restored, so they are simply run again, with
less and less memory (`ladder`). The optimizer's step writes parameters, so it is never restarted but completed
(`update`).
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
from ullage.training.guard.state.rewind import Rewind
from ullage.training.guard.state.written_parameters import parameters_in

_WARM: Final = 3
"""The number of steps after which cuDNN has tried its algorithms, whose workspaces are not needed again."""

Batch = TypeVar("Batch")
Loss = TypeVar("Loss")


@public
class Guard:
    """Runs training steps that survive running out of memory, with the gradient of the full batch.

    Example:
        guard = ullage.Guard(model, optimizer)
        for batch in loader:
            loss = guard.step(batch, lambda b: loss_fn(model(b["x"]), b["y"]))

    Args:
        model: the module that is trained, or several.
        optimizer: the optimizer of its parameters, or several, which step together.
        scaler: the gradient scaler of a loop with automatic mixed precision; the guard unscales, steps and updates it.
        scheduler: a learning-rate scheduler, or several, stepped after each optimizer step.
        batch_dim: the dimension along which items lie in the tensors of a batch.
        reduction: "mean" if the loss is a mean over items, "sum" if it is a sum.
        weight: needed if the loss is a mean over something other than items, such as tokens that are not padding:
            a function that returns how many of them a batch, or a part of one, has. Only called when a batch is split.
        splittable: True if the loss of each item is its own, False if it depends on the others (in-batch negatives). If
            it is left out, that is tried by forward passes without gradients in each step that is split. If the tensors
            of a batch differ in size along `batch_dim`, it is split only if this is True; tensors of the first one's
            size are cut.
        batchnorm: "freeze" to normalise with the running statistics in every step, whole or split; "allow" to let
            a split change the statistics without a warning.
        clip_grad_norm: the largest norm of all gradients together, as in `torch.nn.utils.clip_grad_norm_`.
        before_step: called after the last backward and before the optimizer, with gradients unscaled.
        checkpoint: names of modules ("layers.*") for which activation checkpointing may be used if a single item does
            not fit.
        offload: whether tensors that forward saves may be kept in host memory if a single item does not fit.
        pinned_bytes: how many bytes of that host memory may be page-locked.
        backward: called instead of `loss.backward()`.
        timeout: how long a rank waits for the others (DistributedDataParallel, FSDP) before it raises. Every rank
            has to make its guard, because the process group in which they agree is created then.
        log: called with one line each time memory runs out; by default the logger "ullage.guard" warns.

    Raises:
        UsageError: an argument is not what is expected.
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
        """See the class for the arguments. Nothing is copied and nothing is run yet."""
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
        """Build the objects that hold the parameters; again if some were added or moved, or modules were added."""
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
        """Run forward, backward and, where `update` is true, the optimizer's step.

        Gradients are set to None at the start of a step that follows an update, so they can be read after an update.

        Args:
            batch: a tensor or any nesting of dicts, lists, tuples, dataclasses of tensors; `loss_of` gets it whole, or
                in parts of the same form. A batch of any other form is not split.
            loss_of: computes the loss of a batch, a tensor with one element; or a tuple of it and anything else.
            update: False for all but the last call of a gradient accumulation; the caller divides the loss, as usual.

        Returns:
            The loss of the whole batch, detached; or the tuple, with its second element joined from those of the parts.

        Raises:
            torch.OutOfMemoryError: nothing fits; everything is as before the step, and the error's notes say why. If it
                is the optimizer's state that does not fit, parameters and that state are as before.
            RuntimeError: the step has changed what cannot be put back, which is named, and is not taken again.
            UsageError: `loss_of` returns no loss, or the batch holds something that it uses up, such as an iterator.
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
            # Code that catches it and goes on starts afresh: gradients left by this step must not count in the next.
            self._is_updated = drops_gradients
            raise
        if self._event_log.step == _WARM and torch.backends.cudnn.benchmark:
            self._room.empty_cache()
        return self._ladder.outcome(climbed.done)

    def update(self) -> None:
        """Apply the gradients accumulated by steps with `update=False`: clip, step the optimizers and schedulers.

        Raises:
            torch.OutOfMemoryError: the optimizer's state does not fit; no parameter has changed.
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
        """Run the heaviest step before training, without effect: forward, backward, and the optimizer's allocations.

        Afterwards the guard knows in how many parts that batch has to be taken, and PyTorch's cache has segments that
        the largest shapes fit into, which avoids fragmentation by varying lengths. Parameters, gradients, buffers,
        optimizer state and random numbers are as before. Every rank has to call it.

        Args:
            batches: a loader or a list, which is iterated once; or lengths, with `batch_of`.
            loss_of: as for `step`.
            batch_of: makes a batch whose longest item has the given length.
            cost: returns how heavy a batch is; by default its items times the elements of one.

        Raises:
            UsageError: there is no batch, or lengths are given without `batch_of`.
            torch.OutOfMemoryError: the heaviest batch does not fit in any way; the error's notes say why.
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
        """Empty PyTorch's cache before and after code that uses other shapes, such as evaluation or saving.

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
        """The latest thousand events: each time memory ran out, and what was done about it."""
        return self._event_log.events

    @property
    def total_norm(self) -> torch.Tensor | None:
        """The norm of all gradients together, as measured before they were last clipped."""
        return self._update.total_norm

    def _report_failure(self, error: BaseException) -> None:
        """Add the report to an out-of-memory error that leaves the guard, and notify the other ranks of any error."""
        if read_oom(error, is_on_host=self._room.is_on_host) is not None:
            add_oom_report(error, self._room)
        if self._ranks is not None and isinstance(error, Exception) and not isinstance(error, RankError):
            self._ranks.announce_failure()

    def _drop_gradients(self) -> bool:
        """Set gradients to None; return whether these are known to be all gradients."""
        for optimizer in self._optimizers:
            if type(optimizer).zero_grad is Optimizer.zero_grad:  # the same without its profiling
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
    """Return each group's number of parameters and its first one's device: they change when parameters join or move."""
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
