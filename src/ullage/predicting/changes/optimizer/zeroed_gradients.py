"""Gradients that are given back between steps, where a script keeps them and fills them with zeros."""

import ast
import functools
from typing import TYPE_CHECKING, Any, Final

from ullage.predicting.changes.change import Applicable, Change, ChangeCost, Gradients
from ullage.predicting.changes.source.user_source import source_of
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.edit import NotCertain, Recipe, ReplaceExpression
from ullage.predicting.editing.scope import parse

if TYPE_CHECKING:
    from ullage.predicting.changes.training.training_loop import TrainingLoop

_SNIPPET: Final = "optimizer.zero_grad(set_to_none=True)"


def _install(loop: "TrainingLoop", setting: str) -> None:
    torch: Any = loop.torch
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        setattr(owner, "zero_grad", _to_none(owner.zero_grad, loop))  # noqa: B010  mypy is right otherwise


def _to_none(original: Any, loop: "TrainingLoop") -> Any:
    @functools.wraps(original)
    def zero_grad(self: Any, *arguments: Any, **keywords: Any) -> None:
        gives_back = all([*arguments, *keywords.values()])  # set_to_none is all that it takes
        loop.effects["zero_grad=none"] += not gives_back
        original(self, set_to_none=True)

    return zero_grad


def _applicable(facts: TrainingFacts) -> Applicable:
    if not facts.loop.keeps_zeroed:
        return Applicable(why_not="the script does not keep gradients that it has set to zero")
    return Applicable(settings=("none",))


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    try:
        return Recipe(snippet=_SNIPPET, edits=(_edit(facts),))
    except NotCertain as error:
        return Recipe(snippet=_SNIPPET, why_not=str(error))


def _edit(facts: TrainingFacts) -> ReplaceExpression:
    """Return the edit of the call's argument.

    Raises:
        NotCertain: there is no such call at the line.
    """
    place = facts.loop.zero_grad
    if place is None:
        raise NotCertain("no line calls zero_grad")
    calls = [
        node
        for node in ast.walk(parse(source_of(place.file)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "zero_grad"
        and node.lineno <= place.line <= (node.end_lineno or node.lineno)
    ]
    values = [value for call in calls for value in [*call.args, *(each.value for each in call.keywords)]]
    if len(values) != 1 or not (isinstance(values[0], ast.Constant) and values[0].value is False):
        raise NotCertain("zero_grad is not called with False there")
    value = values[0]
    return ReplaceExpression(file=place.file, line=value.lineno, column=value.col_offset, old="False", new="True")


CHANGE: Final = Change(
    key="zero_grad",
    name="gradients given back",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.SAME,
    explanation="zero_grad gives the gradients back, so that none are there during the next forward pass",
    settings_for=_applicable,
    install=_install,
    recipe_for=_recipe_for,
)
