"""Move the tensors that autograd saves for the backward pass to host memory."""

from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.copied_function import copied_into, text_of_function
from ullage.predicting.changes.source import around_forward
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.edit import Recipe, SourceEdit

_HEADER: Final = "with saved_on_host():"
_MODULE: Final = "ullage.predicting.changes.activations.saved_on_host"
_IMPORTS: Final = (
    "import weakref",
    "import torch",
    "from torch.multiprocessing.reductions import StorageWeakRef",
)


def _settings_for(facts: TrainingFacts) -> Applicable:
    if facts.model is None:
        return Applicable(why_not="no module was called in training mode with gradients")
    if facts.model.is_compiled:
        return Applicable(why_not="the model is compiled, and the tensors that a compiled graph saves cannot be moved")
    return Applicable(settings=("on",))


def _install(applied: AppliedChange) -> None:
    from ullage.predicting.changes.activations.saved_on_host import saved_on_host

    loop = applied.loop
    entered: list[Any] = []

    def enter(module: object, frame: object) -> None:
        if not entered:
            entered.append(saved_on_host())  # type: ignore[no-untyped-call]
            entered[0].__enter__()
            applied.took_effect()

    def leave() -> None:
        if entered:
            entered.pop().__exit__(None, None, None)

    loop.before_forward.append(enter)
    loop.before_backward.insert(0, leave)  # context managers are left in reverse order


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    function = text_of_function(_MODULE)
    lines = "    loss = ...  # the forward pass and the loss, not the backward pass"
    snippet = "\n".join((*_IMPORTS, "", "", function, "", "", _HEADER, lines))
    if facts.loop.library:
        return Recipe(snippet=snippet)

    def edits() -> list[SourceEdit]:
        wraps = around_forward(facts, _HEADER)
        files = dict.fromkeys(each.file for each in wraps)
        return [*wraps, *(edit for file in files for edit in copied_into(file, function, _IMPORTS))]

    return Recipe.placed(snippet, edits)


CHANGE: Final = Change(
    key="offload",
    name="saved tensors in host memory",
    cost=ChangeCost.TIME,
    gradients=Gradients.SAME,
    explanation=(
        "tensors that the forward pass saves for the backward pass, apart from parameters, are copied to host memory, "
        "and back when they are needed"
    ),
    settings_for=_settings_for,
    install=_install,
    recipe_for=_recipe_for,
)
