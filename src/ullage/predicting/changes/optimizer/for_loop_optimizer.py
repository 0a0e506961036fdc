"""An optimizer that goes parameter by parameter."""

from typing import Final

from ullage.predicting.changes.change import Change, ChangeCost, Gradients
from ullage.predicting.changes.optimizer.optimizer_default import applicable, recipe_of, set_default

CHANGE: Final = Change(
    key="for_loop",
    name="for-loop optimizer",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.ROUNDING,
    explanation="the optimizer updates parameter by parameter, so that its temporary tensors are those of one",
    excludes=frozenset({"fused"}),
    settings_for=lambda facts: applicable(facts, "foreach"),
    install=lambda loop, setting: set_default(loop, "for_loop=on", foreach=False),
    recipe_for=lambda facts, setting: recipe_of(facts, "foreach", "False"),
)
