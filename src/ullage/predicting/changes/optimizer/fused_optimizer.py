"""A fused optimizer: its step makes no temporary tensors."""

from typing import Final

from ullage.predicting.changes.change import Change, ChangeCost, Gradients
from ullage.predicting.changes.optimizer.optimizer_default import applicable, recipe_of, set_default

CHANGE: Final = Change(
    key="fused",
    name="fused optimizer",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.ROUNDING,
    explanation="one kernel updates all parameters, without temporary lists of them",
    excludes=frozenset({"for_loop"}),
    settings_for=lambda facts: applicable(facts, "fused"),
    install=lambda loop, setting: set_default(loop, "fused=on", fused=True),
    recipe_for=lambda facts, setting: recipe_of(facts, "fused", "True"),
)
