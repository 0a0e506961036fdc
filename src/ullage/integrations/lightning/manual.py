"""Manual optimization: a guard that a LightningModule makes for itself."""

from typing import Any, Final

from ullage.base.errors import UsageError
from ullage.integrations.framework import OwnScaling
from ullage.training.guard.guard import Guard
from ullage.training.guard.retries.ladder import LossOf

_STEP_AS_WE_DO: Final = ("Precision", "MixedPrecision")
"""The precision plugins that step the optimizer in a way that a guard can."""


def guard(module: Any, optimizer: Any = None, **options: Any) -> Guard:
    """Return a guard for a module that uses manual optimization.

    Example:
        def on_train_start(self):
            self.guard = ullage.integrations.lightning.guard(self)

        def training_step(self, batch, batch_idx):
            self.log("loss", self.guard.step(batch, lambda b: self.loss_of(b)))

    Log outside of the function that computes the loss, which may be called more than once.

    Args:
        module: the LightningModule, in `on_train_start` or later.
        optimizer: one or several of `self.optimizers()`; by default all of them.
        options: further arguments of `ullage.Guard`.

    Raises:
        UsageError: the precision plugin steps the optimizer in a way of its own.
    """
    chosen = module.optimizers() if optimizer is None else optimizer
    return _ManualGuard(module, list(chosen) if isinstance(chosen, list | tuple) else [chosen], options)


class _ManualGuard(Guard):
    """A guard that counts steps as Lightning does: `global_step` counts calls of the optimizers it has wrapped."""

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
            scaler=scaler_of(plugin),
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


def scaler_of(plugin: Any) -> Any:
    """Return the scaler of a precision plugin.

    Raises:
        UsageError: the plugin steps the optimizer in a way that a guard does not.
    """
    home = next(kind for kind in type(plugin).__mro__ if "optimizer_step" in vars(kind))
    if home.__name__ not in _STEP_AS_WE_DO:
        raise UsageError(
            f"the precision plugin {type(plugin).__name__} steps the optimizer in a way of its own, which cannot be "
            "guarded; expected precision '32-true', '64-true', 'bf16-mixed', '16-mixed' or another without one"
        )
    scaler = getattr(plugin, "scaler", None)
    return None if scaler is None else OwnScaling(scaler)
