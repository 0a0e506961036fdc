"""Set `fused=True` or `foreach=False` for optimizers if the script sets neither argument."""

import functools
import inspect
from collections.abc import Iterator
from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.training.facts import OptimizerFacts, TrainingFacts
from ullage.predicting.changes.training.wrapping import wrap
from ullage.predicting.editing.edit import AddKeyword, Recipe


def own_optimizers(optim: Any) -> Iterator[Any]:
    """Yield the optimizer classes of torch.optim that define their own `__init__`."""
    for kind in list(vars(optim).values()):
        is_optimizer = isinstance(kind, type) and issubclass(kind, optim.Optimizer) and kind is not optim.Optimizer
        if is_optimizer and "__init__" in vars(kind):
            yield kind


def _set_default(applied: AppliedChange, keyword: str, *, value: bool) -> None:

    def init(original: Any, *arguments: Any, **keywords: Any) -> None:
        # AdamW passes its argument to Adam, whose __init__ then sees that a choice was made.
        if not {"fused", "foreach"} & {name for name, given in keywords.items() if given is not None}:
            keywords[keyword] = value
            applied.took_effect()
        original(*arguments, **keywords)

    for kind in own_optimizers(applied.loop.torch.optim):
        if keyword in inspect.signature(kind.__init__).parameters:
            wrap(kind, "__init__", init)


def _settings_for(keyword: str, facts: TrainingFacts) -> Applicable:
    own = [each for each in facts.optimizers if _is_own(each)]
    if not own:
        return Applicable(why_not="no optimizer of torch.optim took a step")
    able = [each for each in own if keyword in each.implementations]
    if not able:
        return Applicable(why_not=f"{own[0].kind} has no argument {keyword}")
    if all(each.says_implementation for each in able):
        return Applicable(why_not="the script passes fused or foreach itself")
    return Applicable(settings=("on",))


def _recipe_for(facts: TrainingFacts, keyword: str, *, value: bool) -> Recipe:
    edits = tuple(
        AddKeyword(file=each.made.file, line=each.made.line, function=each.kind, keyword=keyword, value=str(value))
        for each in facts.optimizers
        if each.made is not None and _is_own(each) and keyword in each.implementations and not each.says_implementation
    )
    kind = edits[0].function if edits else "AdamW"
    return Recipe(snippet=f"{kind}(..., {keyword}={value})", edits=edits)


def _is_own(optimizer: OptimizerFacts) -> bool:
    return optimizer.module.startswith("torch.optim")


FUSED: Final = Change(
    key="fused",
    name="fused optimizer",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.ROUNDING,
    explanation="one kernel updates all parameters, without temporary lists of tensors",
    excludes=frozenset({"for_loop"}),
    settings_for=functools.partial(_settings_for, "fused"),
    install=lambda applied: _set_default(applied, "fused", value=True),
    recipe_for=lambda facts, setting: _recipe_for(facts, "fused", value=True),
)
FOR_LOOP: Final = Change(
    key="for_loop",
    name="for-loop optimizer",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.ROUNDING,
    explanation="the optimizer updates one parameter at a time, so that temporary tensors exist for one parameter only",
    excludes=frozenset({"fused"}),
    settings_for=functools.partial(_settings_for, "foreach"),
    install=lambda applied: _set_default(applied, "foreach", value=False),
    recipe_for=lambda facts, setting: _recipe_for(facts, "foreach", value=False),
)
