"""The optimizers' default implementation (foreach, fused), where a script leaves the choice to PyTorch."""

import functools
import inspect
from typing import TYPE_CHECKING, Any

from ullage.predicting.changes.change import Applicable
from ullage.predicting.changes.training.facts import OptimizerFacts, TrainingFacts
from ullage.predicting.editing.edit import AddKeyword, Recipe

if TYPE_CHECKING:
    from ullage.predicting.changes.training.training_loop import TrainingLoop


def set_default(loop: "TrainingLoop", text: str, **default: bool) -> None:
    """Give every optimizer of torch.optim a keyword argument, unless the script passes it or its alternative."""
    optim: Any = loop.torch.optim
    for kind in vars(optim).values():
        if not (isinstance(kind, type) and issubclass(kind, optim.Optimizer)):
            continue
        original = vars(kind).get("__init__")
        if original is not None and default.keys() <= inspect.signature(original).parameters.keys():
            setattr(kind, "__init__", _with_default(original, default, loop, text))  # noqa: B010  mypy is right otherwise


def _with_default(original: Any, default: dict[str, bool], loop: "TrainingLoop", text: str) -> Any:
    @functools.wraps(original)
    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        # AdamW hands its choice on to Adam, whose __init__ then sees a choice made.
        if not {"fused", "foreach"} & {name for name, value in keywords.items() if value is not None}:
            keywords |= default
            loop.effects[text] += 1
        original(self, *arguments, **keywords)

    return init


def applicable(facts: TrainingFacts, keyword: str) -> Applicable:
    """Tell whether an optimizer of PyTorch's that has an argument leaves the choice open."""
    own = [each for each in facts.optimizers if _is_own(each)]
    if not own:
        return Applicable(why_not="no optimizer of torch.optim took a step")
    able = [each for each in own if keyword in each.implementations]
    if not able:
        return Applicable(why_not=f"{own[0].kind} has no argument {keyword}")
    if all(each.says_implementation for each in able):
        return Applicable(why_not="the script passes fused or foreach itself")
    return Applicable(settings=("on",))


def recipe_of(facts: TrainingFacts, keyword: str, value: str) -> Recipe:
    """Return the recipe for a keyword argument where the optimizers are made."""
    open_ones = [
        each
        for each in facts.optimizers
        if each.made is not None and _is_own(each) and keyword in each.implementations and not each.says_implementation
    ]
    kind = open_ones[0].kind if open_ones else "AdamW"
    edits = tuple(
        AddKeyword(file=each.made.file, line=each.made.line, function=each.kind, keyword=keyword, value=value)
        for each in open_ones
        if each.made is not None
    )
    return Recipe(snippet=f"{kind}(..., {keyword}={value})", edits=edits)


def _is_own(optimizer: OptimizerFacts) -> bool:
    return optimizer.module.startswith("torch.optim")
