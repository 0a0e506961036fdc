"""Keep the adapters of PEFT in the data type of a 16-bit base model, instead of float32."""

# With `autocast_adapter_dtype=True`, its default, PEFT casts 16-bit adapters to float32 (`cast_adapter_dtype` in
# peft/tuners/tuners_utils.py, PEFT 0.18). Each LoRA layer then casts its input to float32, and keeps the copy for the
# backward pass.

import functools
from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.changes.training.wrapping import adapter_calls
from ullage.predicting.editing.edit import AddKeyword, Recipe

_KEYWORD: Final = "autocast_adapter_dtype"
_FUNCTION: Final = "get_peft_model"


def _settings_for(facts: TrainingFacts) -> Applicable:
    return Applicable.unless(
        (not facts.loop.has_wide_adapters, "the model has no adapters of PEFT in float32 on a base model of 16 bits")
    )


def _install(applied: AppliedChange) -> None:
    adapter_calls(functools.partial(_pass, applied))


def _pass(applied: AppliedChange, keywords: dict[str, Any]) -> None:
    if keywords.get(_KEYWORD):
        applied.refuse(f"the script passes {_KEYWORD} itself")
        return
    keywords[_KEYWORD] = False
    applied.took_effect()


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    place, snippet = facts.loop.adapters_made, f"model = {_FUNCTION}(model, config, {_KEYWORD}=False)"
    if place is None:
        return Recipe(snippet=snippet)
    edit = AddKeyword(file=place.file, line=place.line, function=_FUNCTION, keyword=_KEYWORD, value="False")
    return Recipe(snippet=snippet, edits=(edit,))


CHANGE: Final = Change(
    key="adapter_dtype",
    name="adapters in the data type of the base model",
    cost=ChangeCost.NUMERICS,
    gradients=Gradients.CHANGED,
    explanation="the adapters and their gradients are not in float32, and no layer casts its input to float32",
    remark_for=lambda facts: (
        "the optimizer updates the adapters with 16 bits, which rounds small updates away; compare the loss with that "
        "of the unchanged script"
    ),
    settings_for=_settings_for,
    install=_install,
    recipe_for=_recipe_for,
)
