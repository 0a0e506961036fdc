"""Compute attention by `scaled_dot_product_attention`, which does not store the attention scores."""

from pathlib import Path
from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.edit import InsertAfter, Recipe

_CALL: Final = 'set_attn_implementation("sdpa")'


def _settings_for(facts: TrainingFacts) -> Applicable:
    model = facts.model
    if model is None:
        return Applicable(why_not="no module was called in training mode with gradients")
    if model.attention is None:
        if model.scores is not None:
            place = f"{Path(model.scores.file).name}:{model.scores.line}"
            return Applicable(
                why_not=f"attention is written by hand at {place}; replace it with "
                "torch.nn.functional.scaled_dot_product_attention there"
            )
        return Applicable(why_not="the model saves no softmax over all pairs of tokens for the backward pass")
    if model.attention != "eager":
        return Applicable(why_not=f"the model uses attention by {model.attention} already")
    if not model.has_sdpa:
        return Applicable(why_not=f"transformers does not support this attention for {model.kind}")
    return Applicable(settings=("on",))


def _switch(applied: AppliedChange, module: Any) -> None:
    from ullage.predicting.changes.training import model_structure

    model, _, _ = model_structure.unwrapped(module)
    _, inner = model_structure.transformers_in(model)
    if inner is None:
        applied.refuse(f"{type(model).__name__} is not a transformers model")
        return
    if not hasattr(inner, "set_attn_implementation"):
        applied.refuse("this version of transformers cannot change the attention of an existing model")
        return
    try:
        inner.set_attn_implementation("sdpa")
    except ValueError as error:
        applied.refuse(f"transformers rejects it: {str(error).partition('. ')[0]}")
        return
    applied.took_effect()


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    model = facts.model
    known = next((each for each in (model.names if model else ()) if each.assigned is not None), None)
    if model is None or model.transformers_path is None or known is None or known.assigned is None:
        return Recipe(snippet=f"model.{_CALL}")
    path = f".{model.transformers_path}" if model.transformers_path else ""
    text = f"{known.name}{path}.{_CALL}"
    return Recipe(snippet=text, edits=(InsertAfter(file=known.assigned.file, line=known.assigned.line, text=text),))


CHANGE: Final = Change(
    key="sdpa",
    name="scaled_dot_product_attention",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.ROUNDING,
    explanation="attention runs in one kernel that does not store the scores of all pairs of tokens",
    settings_for=_settings_for,
    install=lambda applied: applied.loop.before_first_forward.append(lambda module, _: _switch(applied, module)),
    recipe_for=_recipe_for,
)
