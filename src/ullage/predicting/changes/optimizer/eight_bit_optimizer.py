"""Replace the optimizer by one with 8-bit states, from bitsandbytes or torchao."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.training.facts import OptimizerFacts, TrainingFacts
from ullage.predicting.editing.edit import AddImport, Recipe, ReplaceCall

_KINDS: Final = ("AdamW", "Adam")
# The import statement for each library, and the name of its 8-bit optimizer class.
_WRITTEN: Final = {
    "bitsandbytes": ("import bitsandbytes as bnb", "bnb.optim.{}8bit"),
    "torchao": ("from torchao.optim import {}8bit", "{}8bit"),
}
# These arguments choose between implementations. An 8-bit optimizer has only one, so they are dropped.
_IGNORED: Final = frozenset({"foreach", "fused"})
_UNKNOWN: Final = frozenset({"maximize", "capturable", "differentiable", "decoupled_weight_decay"})


# The library is not imported, because that would import torch.
def _is_there(library: str) -> bool:
    try:
        spec = find_spec(library)
    except (ImportError, ValueError):
        return False
    folders = spec.submodule_search_locations if spec is not None else None
    return any((Path(folder) / name).exists() for folder in folders or () for name in ("optim", "optim.py"))


def _install(applied: AppliedChange) -> None:
    for name in _KINDS:
        kind: Any = getattr(applied.loop.torch.optim, name)
        kind.__new__ = _making_eight_bit(applied, kind)


# `__new__` returns an object of another class, so Python does not call `__init__` on it.
def _making_eight_bit(applied: AppliedChange, kind: Any) -> Any:
    library = applied.setting

    def new(cls: Any, *arguments: Any, **keywords: Any) -> Any:
        if cls is not kind:  # AdamW is a subclass of Adam, and the user's class may be a subclass of either
            return object.__new__(cls)
        asked = sorted(name for name in _UNKNOWN & keywords.keys() if keywords[name])
        if asked or len(arguments) > 1:
            what = asked[0] if asked else "positional arguments"
            applied.fail(f"the script gives {kind.__name__} {what}, which the 8-bit optimizer does not accept")
            return object.__new__(cls)
        kept = {name: value for name, value in keywords.items() if name not in _IGNORED | _UNKNOWN}
        try:
            other = getattr(import_module(f"{library}.optim"), f"{kind.__name__}8bit")
        except (ImportError, OSError, AttributeError) as error:
            applied.fail(f"{library} cannot be used: {type(error).__name__}: {str(error).partition('. ')[0]}")
            return object.__new__(cls)
        applied.took_effect()
        return other(*arguments, **kept)

    return new


def _eligible(facts: TrainingFacts) -> list[OptimizerFacts]:
    return [each for each in facts.optimizers if each.kind in _KINDS and each.module.startswith("torch.optim")]


def _applicable(facts: TrainingFacts) -> Applicable:
    if not _eligible(facts):
        return Applicable(why_not="no AdamW or Adam of torch.optim took a step")
    if facts.model is not None and facts.model.wrapper.startswith("FullySharded"):
        return Applicable(why_not="the model is sharded, and 8-bit states do not support sharded parameters")
    there = tuple(library for library in _WRITTEN if _is_there(library))[:1]
    return Applicable(settings=there, why_not="" if there else "neither bitsandbytes nor torchao is installed")


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    eligible, (imported, name) = _eligible(facts), _WRITTEN[setting]
    kind = eligible[0].kind if eligible else _KINDS[0]
    edits: list[AddImport | ReplaceCall] = []
    for each in eligible:
        if each.made is None or each.says_implementation:  # the 8-bit optimizer does not accept this keyword
            edits = []
            break
        file, line, new = each.made.file, each.made.line, name.format(each.kind)
        edits.append(AddImport(file=file, text=imported.format(each.kind)))
        edits.append(ReplaceCall(file=file, line=line, function=each.kind, replacement=new))
    return Recipe(snippet=f"{imported.format(kind)}\n{name.format(kind)}(...)", edits=tuple(edits))


CHANGE: Final = Change(
    key="eight_bit",
    name="8-bit optimizer",
    cost=ChangeCost.NUMERICS,
    gradients=Gradients.SAME,
    explanation=(
        "the optimizer stores its moving averages in 8 bits per number; its updates are rounded, the gradients are not"
    ),
    settings_for=_applicable,
    install=_install,
    recipe_for=_recipe_for,
)
