"""A loss of large logits that does not hold the log-softmax of all rows: by chunks, or Liger-Kernel's fused one.

Settings: "liger" for models of transformers where Liger-Kernel is installed; a number of rows for a script that calls
`torch.nn.functional.cross_entropy` itself.
"""

import importlib
import sys
from typing import Any, Final

from ullage.gpu.tracing.source import is_users
from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.loss.fused_loss_edits import (
    LARGE,
    LIGER,
    ROWS,
    has_liger,
    liger_for,
    liger_switches,
    recipe_for,
)
from ullage.predicting.changes.training.facts import LossFacts, TrainingFacts

_LIGER_PATCHES: Final = "liger_kernel.transformers.monkey_patch"


def _settings_for(facts: TrainingFacts) -> Applicable:
    large = [each for each in facts.losses if each.rows * each.classes >= LARGE]
    if not large:
        return Applicable(why_not="no cross entropy of large logits was computed")
    settings = [str(ROWS)] if any(each.is_users and each.rows > ROWS for each in large) else []
    if liger_for(facts.model) is not None:
        settings.append(LIGER)
    if settings:
        return Applicable(settings=settings)
    return Applicable(why_not=_reason(large[0], facts))


def _reason(loss: LossFacts, facts: TrainingFacts) -> str:
    if loss.is_users:
        return f"the logits have no more than {ROWS} rows"
    if facts.model is not None and facts.model.transformers_path is not None:
        if has_liger():
            return f"Liger-Kernel has no loss for models of type {facts.model.model_type}"
        return "the loss is computed inside transformers, and Liger-Kernel, which replaces it, is not installed"
    return f"the script does not call torch.nn.functional.cross_entropy itself at line {loss.place.line}"


def _install(applied: AppliedChange) -> None:
    if applied.setting == LIGER:
        applied.loop.before_first_forward.append(lambda module, frame: _apply_liger(applied, module))
    else:
        _install_chunks(applied)


def _install_chunks(applied: AppliedChange) -> None:
    """Have the user's own calls of cross_entropy computed by chunks."""
    from ullage.predicting.changes.loss.chunked_cross_entropy import chunked_cross_entropy

    rows, torch = int(applied.setting), applied.loop.torch
    chunked: Any = chunked_cross_entropy
    functional: Any = torch.nn.functional
    original = functional.cross_entropy
    is_compiling, allowed = torch.compiler.is_compiling, {"ignore_index", "label_smoothing"}

    def cross_entropy(source: Any, target: Any, *arguments: Any, **keywords: Any) -> Any:
        if is_compiling() or not is_users(sys._getframe(1).f_code.co_filename):
            return original(source, target, *arguments, **keywords)
        if arguments or not keywords.keys() <= allowed or target.is_floating_point():
            applied.refuse("a call of cross_entropy has arguments that the chunked one does not know")
            return original(source, target, *arguments, **keywords)
        if source.ndim != 2 or source.numel() < LARGE or source.shape[0] <= rows:
            return original(source, target, *arguments, **keywords)
        applied.took_effect()
        return chunked(source, target, rows=rows, **keywords)

    functional.cross_entropy = cross_entropy


def _apply_liger(applied: AppliedChange, module: Any) -> None:
    """Replace the loss of a model of transformers, and nothing else of it."""
    from ullage.predicting.changes.training import model_structure

    model, _, _ = model_structure.unwrapped(module)
    _, inner = model_structure.transformers_in(model)
    if inner is None or not has_liger():
        applied.refuse("Liger-Kernel is not installed" if inner is not None else "it is no model of transformers")
        return
    try:
        known: dict[str, Any] = importlib.import_module(_LIGER_PATCHES).MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError as error:  # as where transformers is older than it wants
        applied.refuse(f"Liger-Kernel cannot be imported: {str(error).partition('. ')[0]}")
        return
    kind = inner.config.model_type
    apply = known.get(kind)
    switches = liger_switches(apply) if apply is not None else {}
    if apply is None or not any(switches.values()):
        applied.refuse(f"Liger-Kernel has no loss for models of type {kind}")
        return
    apply(model=inner, **switches)
    applied.took_effect()


CHANGE: Final = Change(
    key="fused_loss",
    name="loss by chunks",
    title_for=lambda setting: "Liger-Kernel's fused loss" if setting == LIGER else "loss by chunks",
    cost=ChangeCost.TIME,
    gradients=Gradients.ROUNDING,
    explanation="the log-softmax of the logits is computed for some rows at a time, and never held for all",
    settings_for=_settings_for,
    install=_install,
    recipe_for=recipe_for,
)
