"""Move the tensors that autograd saves for the backward pass to host memory."""

from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.source import around_forward
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.edit import Recipe

_HEADER: Final = "with torch.autograd.graph.save_on_cpu(pin_memory=True):"


def _settings_for(facts: TrainingFacts) -> Applicable:
    if facts.model is None:
        return Applicable(why_not="no module was called in training mode with gradients")
    if facts.model.is_compiled:
        return Applicable(why_not="the model is compiled, and the tensors that a compiled graph saves cannot be moved")
    return Applicable(settings=("on",))


def _install(applied: AppliedChange) -> None:
    loop = applied.loop
    entered: list[Any] = []

    def enter(module: object, frame: object) -> None:
        if not entered:
            entered.append(loop.torch.autograd.graph.save_on_cpu(pin_memory=loop.torch.cuda.is_available()))
            entered[0].__enter__()
            applied.took_effect()

    def leave() -> None:
        if entered:
            entered.pop().__exit__(None, None, None)

    loop.before_forward.append(enter)
    loop.before_backward.insert(0, leave)  # context managers are left in reverse order


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    snippet = f"{_HEADER}\n    loss = ...  # the forward pass and the loss, not the backward pass"
    if facts.loop.library:
        return Recipe(snippet=snippet)
    return Recipe.placed(snippet, lambda: around_forward(facts, _HEADER))


CHANGE: Final = Change(
    key="offload",
    name="saved tensors in host memory",
    cost=ChangeCost.TIME,
    gradients=Gradients.SAME,
    explanation=(
        "tensors that the forward pass saves for the backward pass are copied to host memory, and back "
        "when they are needed"
    ),
    settings_for=_settings_for,
    install=_install,
    recipe_for=_recipe_for,
)
