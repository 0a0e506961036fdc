"""Automatic optimization: a callback that guards every training step.

Lightning runs `training_step`, `zero_grad` and backward in a closure. Here `zero_grad` comes first, a guard runs and
retries the rest, and the optimizer's step follows when that has succeeded. What a step logs is held back until then, so
that it is logged once, for the whole batch.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from ullage.base.errors import UsageError
from ullage.integrations.framework import framework
from ullage.integrations.lightning.held import HeldLogs
from ullage.integrations.lightning.manual import scaler_of
from ullage.training.guard.guard import Guard

_lightning: Final = framework("lightning.pytorch", "pytorch_lightning")


class GuardCallback(_lightning.Callback):  # type: ignore[misc,name-defined]  # which of two, shows when it runs
    """Guards every training step of automatic optimization.

    Example:
        trainer = lightning.Trainer(callbacks=[GuardCallback()])
    """

    def __init__(self, **options: Any) -> None:
        """Take the arguments of `ullage.Guard`, except for what Lightning sets: model, optimizer, scaler, clipping."""
        self._options = options
        self._backward: Callable[[torch.Tensor], Any] | None = None
        self.guard: Guard | None = None
        """The guard, from the start of `fit` on; its `events` say what happened."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not pl_module.automatic_optimization:
            raise UsageError(
                f"{type(pl_module).__name__} uses manual optimization (automatic_optimization=False), which "
                "GuardCallback does not guard; make a guard with ullage.integrations.lightning.guard(self), and call "
                "its step in training_step"
            )
        plugin, optimizer = trainer.precision_plugin, trainer.optimizers[0]
        self.guard = Guard(
            trainer.strategy.model,
            optimizer,
            scaler=scaler_of(plugin),
            backward=self._run_backward,
            before_step=partial(plugin._after_closure, pl_module, optimizer),
            **self._options,
        )
        loop = trainer.fit_loop.epoch_loop.automatic_optimization
        self._held = HeldLogs(trainer.fit_loop.epoch_loop._results, pl_module)
        self._make_closure = loop._make_closure
        loop._make_closure = partial(self._guarded_closure, loop)
        self._step = plugin.optimizer_step
        plugin.optimizer_step = self._optimizer_step

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        vars(trainer.fit_loop.epoch_loop.automatic_optimization).pop("_make_closure", None)
        vars(trainer.precision_plugin).pop("optimizer_step", None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)

    def _guarded_closure(self, loop: Any, kwargs: Any, optimizer: Any, batch_idx: int) -> Any:
        closure = self._make_closure(kwargs, optimizer, batch_idx)
        if closure._backward_fn is None:  # batch norm's statistics are computed anew, nothing is trained
            return closure
        if "batch" not in kwargs:
            raise UsageError(
                "training_step takes batches from dataloader_iter itself, so a guard cannot run them again; "
                "expected training_step(self, batch, batch_idx)"
            )
        closure.closure = partial(self._run, loop, closure, kwargs)
        return closure

    @torch.enable_grad()
    def _run(self, loop: Any, closure: Any, kwargs: Any) -> Any:
        assert self.guard is not None
        if closure._zero_grad_fn is not None:
            closure._zero_grad_fn()
        self._backward = closure._backward_fn

        def loss_of(part: Any) -> Any:
            self._held.begin_attempt(part)
            of_part = OrderedDict(kwargs)
            of_part["batch"] = part
            result = loop._training_step(of_part)
            if result.closure_loss is None:
                self._held.commit()  # it has been left out, not failed
                self._held.log_joined(self._held.logged)
                raise _LeftOutError(result)
            return result.closure_loss, {"extra": result.extra, "logged": self._held.logged}

        try:
            with self._held:
                loss, beside = self.guard.step(kwargs["batch"], loss_of, update=False)
                self._held.commit()
        except _LeftOutError as left_out:
            return left_out.result
        finally:
            self._backward = None
        result = loop.output_result_cls(closure_loss=None, extra=beside["extra"])
        result.loss = loss
        self._held.log_joined(beside["logged"])
        return result

    def _run_backward(self, loss: torch.Tensor) -> None:
        assert self._backward is not None
        self._backward(loss)

    def _optimizer_step(self, optimizer: Any, model: Any, closure: Callable[[], Any], **kwargs: Any) -> Any:
        result = closure()
        if result is None:  # training_step returned None: Lightning has ways of its own for that
            return self._step(optimizer, model=model, closure=lambda: None, **kwargs)
        assert self.guard is not None
        self.guard.update()
        return result


class _LeftOutError(Exception):
    """Raised to leave a guard's step because `training_step` returned no loss for this batch."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result
