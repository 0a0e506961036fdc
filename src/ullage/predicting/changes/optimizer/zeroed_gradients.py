"""Free the gradients between steps in place of setting them to zero."""

import ast
from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.source import source_of
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.changes.training.wrapping import wrap
from ullage.predicting.editing.edit import NotCertain, Recipe, ReplaceExpression
from ullage.predicting.editing.scope import calls_at, parse

_SNIPPET: Final = "optimizer.zero_grad(set_to_none=True)"


def _install(applied: AppliedChange) -> None:
    def zero_grad(original: Any, owner: Any, *arguments: Any, **keywords: Any) -> None:
        gives_back = all([*arguments, *keywords.values()])  # set_to_none is its only argument
        applied.took_effect(not gives_back)
        original(owner, set_to_none=True)

    for kind in (applied.loop.torch.optim.Optimizer, applied.loop.torch.nn.Module):
        wrap(kind, "zero_grad", zero_grad)


def _applicable(facts: TrainingFacts) -> Applicable:
    why_not = "the script does not keep zeroed gradients"
    return Applicable.unless((not facts.loop.keeps_zeroed, why_not), settings=("none",))


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    return Recipe.placed(_SNIPPET, lambda: [_edit(facts)])


def _edit(facts: TrainingFacts) -> ReplaceExpression:
    place = facts.loop.zero_grad
    if place is None:
        raise NotCertain("no line of the user's code calls zero_grad")
    calls = calls_at(parse(source_of(place.file)), place.line, "zero_grad")
    values = [value for call in calls for value in [*call.args, *(each.value for each in call.keywords)]]
    if len(values) != 1 or not (isinstance(values[0], ast.Constant) and values[0].value is False):
        raise NotCertain("the line does not call zero_grad with set_to_none=False")
    value = values[0]
    return ReplaceExpression(file=place.file, line=value.lineno, column=value.col_offset, old="False", new="True")


CHANGE: Final = Change(
    key="zero_grad",
    name="gradients freed by zero_grad",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.SAME,
    explanation="zero_grad frees the gradients, so that they take no memory during the next forward pass",
    settings_for=_applicable,
    install=_install,
    recipe_for=_recipe_for,
)
