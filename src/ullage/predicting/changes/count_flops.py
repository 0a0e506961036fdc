"""Count the floating-point operations of a step in a separate run, with PyTorch's FLOP counter."""

from contextlib import nullcontext
from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.editing.edit import Recipe


# Replaces the module tracker of PyTorch's FLOP counter. ullage needs only the total, not a count per module.
class _NoModules(nullcontext[None]):
    parents = frozenset({"Global"})


# The counter is a `TorchDispatchMode`. It changes the allocations of the run, so this run's memory figures are not
# used.
def _install(applied: AppliedChange) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    loop = applied.loop
    counter: Any = FlopCounterMode(display=False)
    counter.mod_tracker = _NoModules()
    state = {"on": False, "over": False}

    def begin(module: object, frame: object) -> None:
        if not state["on"] and not state["over"]:
            state["on"] = True
            counter.__enter__()

    def end(optimizer: Any, take: Any) -> Any:
        if state["on"]:
            state.update(on=False, over=True)
            counter.__exit__(None, None, None)
        return take()

    def note() -> None:
        if state["on"]:
            loop.step_flops = counter.get_total_flops()
            applied.took_effect()

    loop.before_forward.append(begin)
    loop.after_backward.append(note)
    loop.around_step.append(end)
    loop.flops_now = counter.get_total_flops


CHANGE: Final = Change(
    key="count_flops",
    name="a count of floating-point operations",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.SAME,
    explanation="PyTorch's FLOP counter adds up the operations of matrix products, convolutions and attention",
    settings_for=lambda facts: Applicable(why_not="it is a measurement, not a change"),
    install=_install,
    recipe_for=lambda facts, setting: Recipe(snippet="torch.utils.flop_counter.FlopCounterMode()"),
)
