"""Accelerate: a guard for prepared objects, and a tracker that logs memory figures.

The guard uses the accelerator's backward, which divides the loss by the accumulation steps and scales it for fp16.
`accelerator.accumulate` decides when the optimizer steps.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from torch import nn

from ullage.base.errors import UsageError
from ullage.integrations.framework import OwnScaling, framework
from ullage.integrations.memory import WatchesMemory
from ullage.running.recording.step import StepWatch
from ullage.training.guard.guard import Guard
from ullage.training.guard.retries.ladder import LossOf

_accelerate: Final = framework("accelerate")
_STEPS_BY_ITSELF: Final = ("DEEPSPEED", "MEGATRON_LM", "XLA")


def guard(
    accelerator: Any,
    model: nn.Module | Sequence[nn.Module],
    optimizer: Any,
    *,
    scheduler: Any = None,
    before_step: Callable[[], Any] | None = None,
    **options: Any,
) -> Guard:
    """Return a guard for a model, optimizers and schedulers that `accelerator.prepare` has returned.

    Example:
        model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
        guard = ullage.integrations.accelerate.guard(accelerator, model, optimizer, scheduler=scheduler)
        for batch in loader:
            with accelerator.accumulate(model):
                loss = guard.step(batch, lambda b: model(**b).loss)

    Args:
        accelerator: the Accelerator that prepared the other objects.
        model: the model, or several models.
        optimizer: the optimizer, or several optimizers.
        scheduler: the scheduler, or several; it is stepped as in Accelerate's own loop.
        before_step: as in `ullage.Guard`. Gradients are already unscaled when it is called. Do not clip gradients here;
            use `clip_grad_norm`.
        options: more arguments of `ullage.Guard`.

    Returns:
        A `ullage.Guard`.

    Raises:
        UsageError: DeepSpeed, Megatron-LM or XLA runs the step; such a step cannot be guarded.
    """
    kind = accelerator.distributed_type
    if kind.name in _STEPS_BY_ITSELF:
        raise UsageError(
            f"{kind.value} runs forward, backward and the optimizer's step itself, so these cannot be "
            "guarded; expected one process, DistributedDataParallel or FSDP"
        )
    optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    prepared = [one for one in optimizers if isinstance(one, _accelerate.optimizer.AcceleratedOptimizer)]
    scaled = prepared if accelerator.scaler is not None else []
    for one in scaled:
        _unwrapped(one).register_step_post_hook(partial(_has_stepped, one))

    def before() -> None:
        for one in scaled:  # the scheduler reads this to see whether the scaler skipped the step
            one._is_overflow = True
        if before_step is not None:
            before_step()

    return _AccelerateGuard(
        accelerator,
        model,
        [_unwrapped(one) for one in optimizers],
        scheduler=scheduler,
        scaler=OwnScaling(accelerator.scaler) if accelerator.scaler is not None else None,
        backward=accelerator.backward,
        before_step=before if scaled or before_step is not None else None,
        **options,
    )


class MemoryTracker(WatchesMemory, _accelerate.tracking.GeneralTracker):  # type: ignore[misc,name-defined]  # shows when it runs
    """A tracker that logs memory figures together with the accelerator's other values. It warns once about each leak.

    Example:
        accelerator.init_trackers("my run")
        memory = MemoryTracker(accelerator)  # from here on accelerator.log(values, step=step) logs memory too
    """

    name = "ullage"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, accelerator: Any, *, reset_peak: bool = False, **options: Any) -> None:
        """Add this tracker to the accelerator's trackers. A step of the first optimizer counts as a training step.

        Args:
            accelerator: the accelerator, after `init_trackers`.
            reset_peak: whether to reset PyTorch's peak statistics each time the peak has been logged.
            options: arguments of `ullage.Monitor`.
        """
        super().__init__(reset_peak=reset_peak, **options)
        self._accelerator = accelerator
        self._watch.start(accelerator.device)
        self._steps = StepWatch(lambda optimizer: self._watch.step())
        self._steps.install()
        accelerator.trackers.append(self)

    @property
    def tracker(self) -> Any:
        """The monitor that watches the training loop."""
        return self._watch.monitor

    def log(self, values: Any, step: int | None = None, **more: Any) -> None:
        """Log the current memory figures."""
        memory = self._watch.scalars("memory/")
        for other in self._accelerator.trackers if memory else ():
            if other is not self:
                other.log(memory, step=step)

    def finish(self) -> None:
        """Close the monitor. `accelerator.end_training` calls this method."""
        self._steps.stop()
        self._watch.stop()


class _AccelerateGuard(Guard):
    def __init__(self, accelerator: Any, model: Any, optimizer: Any, **options: Any) -> None:
        super().__init__(model, optimizer, **options)
        self._accelerator = accelerator

    def step(self, batch: Any, loss_of: LossOf, *, update: bool = True) -> Any:
        is_due = update and self._accelerator.sync_gradients
        result = super().step(batch, loss_of, update=is_due)
        if update and not is_due:
            for scheduler in self._schedulers:  # a prepared optimizer counts the accumulation steps
                if isinstance(scheduler, _accelerate.scheduler.AcceleratedScheduler):
                    scheduler.step()
        return result


def _has_stepped(optimizer: Any, *_: object) -> None:
    optimizer._is_overflow = False


def _unwrapped(optimizer: Any) -> Any:
    while isinstance(optimizer, _accelerate.optimizer.AcceleratedOptimizer):
        optimizer = optimizer.optimizer
    return optimizer
