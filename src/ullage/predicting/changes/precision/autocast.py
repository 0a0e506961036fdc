"""Mixed precision: the forward pass under `torch.autocast`."""

import weakref
from collections.abc import Callable
from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.precision.autocast_edits import recipe_for
from ullage.predicting.changes.precision.precision_argument import PrecisionArgument
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.changes.training.wrapping import wrap

_BFLOAT16_SINCE: Final = (8, 0)
_HALF: Final = ("float16", "bfloat16")


def _settings_for(facts: TrainingFacts) -> Applicable:
    model = facts.model
    if model is None:
        return Applicable(why_not="no module was called that is trained")
    if facts.loop.autocast is not None:
        return Applicable(why_not=f"the forward pass runs under autocast to {facts.loop.autocast} already")
    if model.dtypes and model.dtypes[0] in _HALF:
        return Applicable(why_not=f"the model's parameters are of type {model.dtypes[0]} already")
    if facts.compute_capability >= _BFLOAT16_SINCE:
        return Applicable(settings=("bfloat16",))
    if facts.loop.has_scaler:
        return Applicable(why_not="the script scales gradients itself")
    if len(facts.optimizers) != 1 and not facts.loop.library:
        return Applicable(why_not="a card without bfloat16 needs a GradScaler, which is put around one optimizer")
    return Applicable(settings=("float16",))


class _Autocast:
    """Autocast from before the forward pass until the backward pass begins.

    With float16, a scaler is put around the backward pass and the optimizer's step.
    """

    def __init__(self, applied: AppliedChange) -> None:
        self._applied = applied
        self._torch: Any = applied.loop.torch
        self._argument = PrecisionArgument(applied)
        self._context: Any = None
        self._scaler: Any = None
        self._optimizers: list[weakref.ref[Any]] = []
        loop = applied.loop
        loop.before_forward.append(self._enter)
        loop.before_backward.append(self._leave)
        if applied.setting == "float16":
            self._wrap_clipping()
            loop.backward_roots.append(self._scaled)
            loop.around_step.append(self._step)
            loop.optimizer_made.append(self._optimizer_made)

    def _enter(self, module: Any, frame: object) -> None:
        if self._context is not None or self._argument.is_passed:
            return
        device = next(module.parameters()).device.type
        if self._torch.is_autocast_enabled(device):
            self._applied.refuse("the forward pass runs under autocast already")
            return
        self._context = self._torch.autocast(device, dtype=getattr(self._torch, self._applied.setting))
        self._context.__enter__()
        self._applied.took_effect()

    def _leave(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)

    # ---- float16

    def _optimizer_made(self, optimizer: Any) -> None:
        self._optimizers.append(weakref.ref(optimizer))
        if self._scaler is None:
            self._scaler = self._torch.amp.GradScaler("cuda" if self._torch.cuda.is_available() else "cpu")

    @property
    def _scales(self) -> bool:
        return self._scaler is not None and not self._argument.is_passed

    def _scaled(self, roots: Any) -> Any:
        if not self._scales:
            return roots
        return self._scaler.scale(roots if isinstance(roots, self._torch.Tensor) else tuple(roots))

    def _step(self, optimizer: Any, take: Callable[[], Any]) -> Any:
        if not self._scales or self._scaler._scale is None:  # no backward pass was scaled
            return take()
        result = self._scaler.step(optimizer)
        self._scaler.update()
        return result

    def _wrap_clipping(self) -> None:
        """Have gradients divided by the scale before they are clipped."""
        for owner in (self._torch.nn.utils, self._torch.nn.utils.clip_grad):
            for name in ("clip_grad_norm_", "clip_grad_value_"):
                wrap(owner, name, self._clip)

    def _clip(self, original: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        if self._scales:
            for optimizer in filter(None, (each() for each in self._optimizers)):
                self._scaler.unscale_(optimizer)
        return original(*arguments, **keywords)


CHANGE: Final = Change(
    key="autocast",
    name="mixed precision",
    title_for=lambda setting: f"mixed precision in {setting}",
    cost=ChangeCost.NUMERICS,
    gradients=Gradients.CHANGED,
    explanation="matrix products and what they keep for the backward pass take two bytes a number in place of four",
    settings_for=_settings_for,
    install=_Autocast,
    recipe_for=recipe_for,
)
