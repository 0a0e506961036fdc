"""Lightning: guards for automatic and manual optimization, and a callback that logs memory.

Lightning runs `training_step`, `zero_grad` and backward in a closure. The guard calls `zero_grad` first, and repeats
the rest if memory runs out. The optimizer steps once after that. Logged values are held back until then, so that a
batch is logged only once.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from ullage.base.errors import UsageError
from ullage.integrations.framework import OwnScaling, framework
from ullage.integrations.memory import WatchesMemory
from ullage.training.guard.guard import Guard
from ullage.training.guard.retries.ladder import LossOf
from ullage.training.guard.splitting.batch import tensors_of

_lightning: Final = framework("lightning.pytorch", "pytorch_lightning")
_MEANS: Final = ("mean", "avg", torch.mean)
# Lightning's precision plugins whose optimizer step a guard can replace
_STEP_AS_WE_DO: Final = ("Precision", "MixedPrecision")


class GuardCallback(_lightning.Callback):  # type: ignore[misc,name-defined]  # which of two, shows when it runs
    """A callback that guards every training step of automatic optimization.

    Example:
        trainer = lightning.Trainer(callbacks=[GuardCallback()])
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._backward: Callable[[torch.Tensor], Any] | None = None
        self.guard: Guard | None = None
        """The guard, which is created when `Trainer.fit` starts. Its `events` list the handled out-of-memory errors."""

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
            scaler=_scaler_of(plugin),
            backward=self._run_backward,
            before_step=partial(plugin._after_closure, pl_module, optimizer),
            **self._options,
        )
        loop = trainer.fit_loop.epoch_loop.automatic_optimization
        self._held = _HeldLogs(trainer.fit_loop.epoch_loop._results, pl_module)
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
        if closure._backward_fn is None:  # batch norm's statistics are recomputed; nothing is trained
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
                self._held.commit()  # the batch has been skipped, and has not failed
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
        if result is None:  # training_step returned None, which Lightning handles itself
            return self._step(optimizer, model=model, closure=lambda: None, **kwargs)
        assert self.guard is not None
        self.guard.update()
        return result


class _LeftOutError(Exception):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


class _HeldLogs:
    def __init__(self, results: Any, module: nn.Module) -> None:
        self._results = results
        self._metrics = [child for child in module.modules() if isinstance(child, framework("torchmetrics").Metric)]
        self._before: list[tuple[nn.Module, dict[str, Any]]] = []
        self._calls: dict[str, Any] = {}
        self.logged: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._place: list[int] | None = None
        self._at_first: list[tuple[nn.Module, dict[str, Any]]] | None = None
        self._log = self._results.log
        self._results.log = self._hold

    def __exit__(self, kind: object, *_: object) -> None:
        del self._results.log
        if kind is not None and self._before and self._at_first is not None:
            self._before = self._at_first  # parts that succeeded are undone too
        self._restore()
        self._calls, self.logged = ({}, {}) if kind is not None else (self._calls, self.logged)

    def begin_attempt(self, part: Any) -> None:
        place = [tensor.data_ptr() for tensor in tensors_of(part)]
        if place == self._place:
            self._restore()
        self._place = place
        self.logged = {}
        self._before = [(metric, _state_of(metric)) for metric in self._metrics]
        if self._at_first is None:
            self._at_first = [(metric, _state_of(metric)) for metric in self._metrics] if self._metrics else []

    def commit(self) -> None:
        self._before = []

    def log_joined(self, logged: Any) -> None:
        for one in logged if isinstance(logged, list) else [logged]:
            for name, value in one.items():
                for each in value if isinstance(value, list) else [value]:
                    each() if callable(each) else self._calls[name](each)
        self._calls, self.logged = {}, {}

    def _hold(self, fx: str, name: str, value: Any, **how: Any) -> None:
        log = partial(self._log, fx, name, **how)
        key = f"{len(self.logged)} {name}"
        is_mean = isinstance(value, torch.Tensor) and how.get("reduce_fx", torch.mean) in _MEANS
        self._calls[key] = log
        self.logged[key] = value if is_mean else partial(log, value)

    def _restore(self) -> None:
        for metric, state in self._before:
            for name, value in state.items():
                setattr(metric, name, value)
        self._before = []


# The elements of lists are not copied, because `update` changes no element.
def _state_of(metric: Any) -> dict[str, Any]:
    names = [*metric._defaults, "_update_count", "_computed", "_forward_cache"]
    values = ((name, getattr(metric, name)) for name in names)
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else list(value) if isinstance(value, list) else value
        for name, value in values
    }


def guard(module: Any, optimizer: Any = None, **options: Any) -> Guard:
    """Return a guard for a LightningModule that uses manual optimization.

    Example:
        def on_train_start(self):
            self.guard = ullage.integrations.lightning.guard(self)

        def training_step(self, batch, batch_idx):
            self.log("loss", self.guard.step(batch, lambda b: self.loss_of(b)))

    Do not log inside the function that computes the loss, because the guard may call that function more than once.

    Args:
        module: the LightningModule, in `on_train_start` or later.
        optimizer: one or several of `self.optimizers()`; by default all of them.
        options: more arguments of `ullage.Guard`.

    Returns:
        A `ullage.Guard`.

    Raises:
        UsageError: the precision plugin has its own way to step the optimizer.
    """
    chosen = module.optimizers() if optimizer is None else optimizer
    return _ManualGuard(module, list(chosen) if isinstance(chosen, list | tuple) else [chosen], options)


# Lightning's `global_step` counts the steps of the optimizers that Lightning wrapped.
class _ManualGuard(Guard):
    def __init__(self, module: Any, optimizers: list[Any], options: dict[str, Any]) -> None:
        self._wrapped = optimizers
        own = options.pop("before_step", None)
        plugin = module.trainer.precision_plugin

        def before_step() -> None:
            for one in optimizers:
                plugin._after_closure(module, one.optimizer)  # the hook on_before_optimizer_step
            if own is not None:
                own()

        super().__init__(
            module.trainer.strategy.model,
            [one.optimizer for one in optimizers],
            scaler=_scaler_of(plugin),
            backward=module.manual_backward,
            before_step=before_step,
            **options,
        )

    def step(self, batch: Any, loss_of: LossOf, *, update: bool = True) -> Any:
        result = super().step(batch, loss_of, update=False)
        if update:
            self.update()
        return result

    def update(self) -> None:
        for one in self._wrapped:
            one._on_before_step()
        super().update()
        for one in self._wrapped:
            one._on_after_step()


def _scaler_of(plugin: Any) -> Any:
    home = next(kind for kind in type(plugin).__mro__ if "optimizer_step" in vars(kind))
    if home.__name__ not in _STEP_AS_WE_DO:
        raise UsageError(
            f"the precision plugin {type(plugin).__name__} has its own way to step the optimizer, which cannot be "
            "guarded; expected precision '32-true', '64-true', 'bf16-mixed', '16-mixed' or a similar one"
        )
    scaler = getattr(plugin, "scaler", None)
    return None if scaler is None else OwnScaling(scaler)


class MemoryCallback(WatchesMemory, _lightning.Callback):  # type: ignore[misc,name-defined]  # which of two, shows when it runs
    """A callback that logs memory as often as the Trainer logs. It warns once about each leak.

    Example:
        trainer = lightning.Trainer(callbacks=[MemoryCallback()])

    The values go directly to the loggers. `self.log` would convert them to single-precision tensors on the GPU. These
    tensors would use memory themselves, and would be wrong by up to 64 bytes in each GiB.
    """

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._watch.start(trainer.strategy.root_device)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._watch.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._watch.stop()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._watch.step()
        if trainer._logger_connector.should_update_logs:
            self._log(trainer, "train")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._watch.enter_phase("validate")

    def on_validation_batch_end(self, *_: Any) -> None:
        self._watch.step()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._log(trainer, "validate")
        self._watch.leave_phase()

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        self._watch.enter_phase("test")

    def on_test_batch_end(self, *_: Any) -> None:
        self._watch.step()

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._log(trainer, "test")
        self._watch.leave_phase()

    def _log(self, trainer: Any, phase: str) -> None:
        values = self._watch.scalars(f"memory/{phase}/") if trainer.loggers else {}
        for logger in trainer.loggers if values else ():
            logger.log_metrics(values, step=trainer.fit_loop.epoch_loop._batches_that_stepped)
