"""Transformers: a mixin that guards the steps of a Trainer, and a callback that logs memory.

The Trainer runs a batch as usual, up to its call of backward. There, the guard takes the loss, so the loss includes
label smoothing, custom loss functions and gradient accumulation. Gradients are clipped when the optimizer steps,
because gradients of several ranks are reduced only then. Methods of the accelerator and the optimizer are replaced
during training, and restored afterwards.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import nn

from ullage.base.errors import UsageError
from ullage.integrations.accelerate import guard as guard_of
from ullage.integrations.framework import framework
from ullage.integrations.memory import WatchesMemory
from ullage.training.guard.guard import Guard
from ullage.training.guard.splitting.batch import items_of

_IGNORED = -100
_callback: Any = framework("transformers.trainer_callback")


class MemoryTrainerCallback(WatchesMemory, _callback.TrainerCallback):  # type: ignore[misc]  # where transformers is, shows when it runs
    """A callback that adds memory figures to the values that the Trainer logs. It warns once of each leak.

    Example:
        MemoryTrainerCallback().add_to(trainer)

    Do not pass it as `callbacks=[MemoryTrainerCallback()]`. It would run after the Trainer's own callbacks that report
    to TensorBoard, W&B and others, so these would not get the memory figures. Only the progress bar and `log_history`
    would.
    """

    def add_to(self, trainer: Any) -> None:
        """Add this callback to a Trainer, before the callbacks that report values."""
        trainer.callback_handler.callbacks.insert(0, self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._watch.start(args.device)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._watch.stop()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._watch.step()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._watch.enter_phase("eval")  # no earlier callback is called before the first batch
        self._watch.step()

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._watch.leave_phase()

    on_predict = on_evaluate

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        is_evaluation = any(name.startswith("eval_") for name in logs)
        values = self._watch.scalars("eval_memory_" if is_evaluation else "memory_")
        logs.update(values)
        if state.log_history:  # the log history already has a copy of the values
            state.log_history[-1].update(values)


class Guarded:
    """A mixin for a Trainer class. Training then continues after an out-of-memory error.

    Example:
        class MyTrainer(Guarded, Trainer):
            guard_options = {"checkpoint": ["model.layers.*"]}  # arguments of ullage.Guard; optional

    A batch that does not fit is split if the guard can prove that the losses of its parts add up. With
    `"splittable": True` in `guard_options`, it is split without a proof. Then the weight of each part is its number of
    labels that count, or without labels its number of items; set `weight` if the loss is a mean over something else.
    """

    guard_options: ClassVar[Mapping[str, Any]] = {}
    guard: Guard | None = None
    """The guard, which is created in the first training step. Its `events` list the handled out-of-memory errors."""

    # the ids of the model and the optimizer
    _guarded: tuple[int, int] | None = None
    # (object, method name, replaced attribute); None if the object inherited the method from its class
    _replaced: Sequence[tuple[Any, str, Any]] = ()

    accelerator: Any
    args: Any
    optimizer: Any

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        place = cls.__mro__.index(Guarded)
        before, after = cls.__mro__[1:place], cls.__mro__[place:]
        if any("training_step" in vars(kind) for kind in before) and not any(
            "training_step" in vars(kind) for kind in after[1:]
        ):
            raise UsageError(
                f"{cls.__name__} lists Guarded after its Trainer; expected class {cls.__name__}(Guarded, ...)"
            )

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None, **more: Any) -> torch.Tensor:
        """Run the forward and backward passes of a batch, in several parts if it does not fit. Return the batch's
        loss.
        """
        if self.guard is None or self._guarded != (id(model), id(self.optimizer)):
            self._install_guard(model)
        assert self.guard is not None
        self._inputs = inputs
        run = super().training_step  # type: ignore[misc]  # the Trainer's

        def loss_of(part: Any) -> torch.Tensor:
            taken: list[torch.Tensor] = []
            self.accelerator.backward = lambda loss, **kwargs: taken.append(_plain(loss, kwargs))
            try:
                run(model, part, self._items_for(part, num_items_in_batch), **more)
            finally:
                del self.accelerator.backward
            if len(taken) != 1:
                raise UsageError(
                    f"training_step called accelerator.backward {len(taken)} times; expected one, as in the Trainer"
                )
            return taken[0]

        try:
            loss: torch.Tensor = self.guard.step(inputs, loss_of, update=False)
        finally:
            self._inputs = None
        return loss

    def train(self, *args: Any, **options: Any) -> Any:
        """Call the Trainer's own `train`, and then restore the replaced methods of its accelerator and optimizer."""
        try:
            return super().train(*args, **options)  # type: ignore[misc]  # the Trainer's
        finally:
            self._uninstall_guard()

    def _install_guard(self, model: nn.Module) -> None:
        self._uninstall_guard()
        if self.args.n_gpu > 1 or getattr(self.accelerator, "parallelism_config", None) is not None:
            raise UsageError(
                f"the Trainer divides a batch among devices itself (n_gpu={self.args.n_gpu}, or a parallelism_config), "
                "so a part of a batch would be divided differently; expected one device for each process (torchrun)"
            )
        self._to_clip: tuple[Any, ...] | None = None
        own = dict(self.guard_options)
        if own.get("splittable"):
            own.setdefault("weight", self._weight)
        self._weigh = own.get("weight")
        self.guard = guard_of(self.accelerator, model, self.optimizer, before_step=self._clip, **own)
        self._guarded = (id(model), id(self.optimizer))
        replacing: list[tuple[Any, str, Any]] = [
            (self.accelerator, "clip_grad_norm_", self._clip_later),
            (self.optimizer, "step", self._step_of_guard),
        ]
        self._replaced = [(owner, name, vars(owner).get(name)) for owner, name, _ in replacing]
        for owner, name, method in replacing:
            setattr(owner, name, method)

    def _step_of_guard(self, closure: Any = None) -> None:
        if self.guard is not None:
            self.guard.update()

    def _uninstall_guard(self) -> None:
        for owner, name, own in self._replaced:
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._replaced = ()
        self._guarded = None

    def _clip_later(self, parameters: Any, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        several = list(parameters)
        norm = torch.zeros((), device=several[0].device, dtype=several[0].dtype)
        self._to_clip = (several, max_norm, norm_type, norm)
        return norm

    def _clip(self) -> None:
        if self._to_clip is not None:
            *how, norm = self._to_clip
            self._to_clip = None
            norm.copy_(nn.utils.clip_grad_norm_(*how))

    # With a weight, the guard treats a part's loss as a mean and multiplies it by the part's share of the weight. So a
    # sum over tokens is divided by that share.
    def _items_for(self, part: Any, num_items_in_batch: Any) -> Any:
        if num_items_in_batch is None or self._weigh is None or items_of(part) == items_of(self._inputs):
            return num_items_in_batch
        return float(num_items_in_batch) * self._weigh(part) / self._weigh(self._inputs)

    def _weight(self, batch: Any) -> float:
        return float(self._labels(batch) or (items_of(batch) if not self._labels(self._inputs) else 0) or 0)

    def _labels(self, batch: Any) -> int:
        labels = batch.get("labels")
        if not isinstance(labels, torch.Tensor):
            return 0
        model: Any = self.accelerator.unwrap_model(self.model)  # type: ignore[attr-defined]  # the Trainer's
        names = framework("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        is_shifted = type(getattr(model, "get_base_model", lambda: model)()).__name__ in names
        return int((labels[..., 1:] if is_shifted else labels).ne(_IGNORED).sum())


def _plain(loss: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
    if options:
        raise UsageError(
            f"the Trainer calls backward with {', '.join(options)}, as for LOMO, whose backward changes parameters and "
            "cannot be undone; expected another optimizer"
        )
    return loss
