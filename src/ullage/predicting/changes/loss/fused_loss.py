"""Compute the loss without storing the logits or log-softmax of all rows: in chunks, by PyTorch or by Liger-Kernel."""

# Settings: a number of rows for a script that calls `torch.nn.functional.cross_entropy` itself; "linear:PATH" if torch
# has `linear_cross_entropy` (2.13 and later) and the linear layer at this path computes the logits; otherwise "liger"
# for transformers models if Liger-Kernel is installed. As source code, the first is a short function in the script that
# replaces the script's calls of cross_entropy. The others are a call after the line that makes the model.

import ast
import functools
import importlib.util
import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ullage.gpu.tracing.source import is_users
from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.copied_function import copied_into, text_of_function
from ullage.predicting.changes.source import source_of
from ullage.predicting.changes.training.facts import LinearHead, LossFacts, ModelFacts, TrainingFacts
from ullage.predicting.editing.edit import (
    AddImport,
    InsertAfter,
    NotCertain,
    Recipe,
    ReplaceCall,
    SourceEdit,
)
from ullage.predicting.editing.scope import parse

_LIGER: Final = "liger"
_LINEAR: Final = "linear:"
# The number of rows of logits in one chunk.
_ROWS: Final = 1024
# With fewer logits than this, computing the loss in chunks saves too little.
_LARGE: Final = 1 << 20
_MODULE: Final = "ullage.predicting.changes.loss.chunked_cross_entropy"
_LATER: Final = "ullage.predicting.changes.loss.later_logits"
_NAME: Final = "chunked_cross_entropy"
# With this argument, Liger-Kernel's functions replace a model's loss.
_LIGER_LOSS: Final = "fused_linear_cross_entropy"
_LIGER_PATCHES: Final = "liger_kernel.transformers.monkey_patch"


def _settings_for(facts: TrainingFacts) -> Applicable:
    large = _large(facts)
    if not large:
        return Applicable(why_not="the script computes no cross entropy of large logits")
    settings = [str(_ROWS)] if any(each.is_users and each.rows > _ROWS for each in large) else []
    head = _head_for(large, facts.model)
    if head is not None:
        settings.append(f"{_LINEAR}{head.path}")
    elif _liger_for(facts.model) is not None:
        settings.append(_LIGER)
    if settings:
        return Applicable(settings=settings)
    return Applicable(why_not=_reason(large[0], facts))


# Below these sizes, PyTorch's documentation says that the whole logits take less.
def _head_for(losses: Sequence[LossFacts], model: ModelFacts | None) -> LinearHead | None:
    if model is None or model.is_compiled:
        return None
    found = [
        head
        for head in model.heads
        if any(loss.classes == head.classes and loss.rows >= head.width and not loss.is_smoothed for loss in losses)
    ]
    return found[0] if len(found) == 1 else None


def _large(facts: TrainingFacts) -> list[LossFacts]:
    return [each for each in facts.losses if each.rows * each.classes >= _LARGE]


def _reason(loss: LossFacts, facts: TrainingFacts) -> str:
    if loss.is_users:
        return f"the logits have at most {_ROWS} rows"
    if facts.model is not None and facts.model.transformers_path is not None:
        if _has_liger():
            return f"Liger-Kernel has no loss for models of type {facts.model.model_type}"
        return "the loss is computed inside transformers, and Liger-Kernel, which could replace it, is not installed"
    return f"line {loss.place.line} does not call torch.nn.functional.cross_entropy directly"


def _install(applied: AppliedChange) -> None:
    if applied.setting.startswith(_LINEAR):
        applied.loop.before_first_forward.append(lambda module, frame: _apply_linear(applied, module))
    elif applied.setting == _LIGER:
        applied.loop.before_first_forward.append(lambda module, frame: _apply_liger(applied, module))
    else:
        _install_chunks(applied)


def _install_chunks(applied: AppliedChange) -> None:
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
            applied.refuse("a call of cross_entropy has arguments that the chunked version does not support")
            return original(source, target, *arguments, **keywords)
        if source.ndim != 2 or source.numel() < _LARGE or source.shape[0] <= rows:
            return original(source, target, *arguments, **keywords)
        applied.took_effect()
        return chunked(source, target, rows=rows, **keywords)

    functional.cross_entropy = cross_entropy


def _apply_linear(applied: AppliedChange, module: Any) -> None:
    from ullage.predicting.changes.training import model_structure

    if not hasattr(applied.loop.torch.nn, "LinearCrossEntropyOptions"):
        applied.refuse("this version of PyTorch has no linear_cross_entropy with options; torch 2.13 and later have it")
        return
    from ullage.predicting.changes.loss.later_logits import LaterLogits

    model, _, _ = model_structure.unwrapped(module)
    path = applied.setting.removeprefix(_LINEAR)
    head = dict(model.named_modules()).get(path)
    if not isinstance(head, applied.loop.torch.nn.Linear):
        if not applied.loop.effects[applied.text]:  # a step may call several modules
            applied.refuse(f"{path} is not a linear layer of {type(model).__name__}")
        return
    LaterLogits.in_training(head)  # type: ignore[no-untyped-call]
    applied.took_effect()
    applied.loop.refusals.pop(applied.text, None)


def _apply_liger(applied: AppliedChange, module: Any) -> None:
    from ullage.predicting.changes.training import model_structure

    model, _, _ = model_structure.unwrapped(module)
    _, inner = model_structure.transformers_in(model)
    if inner is None or not _has_liger():
        applied.refuse(
            "Liger-Kernel is not installed" if inner is not None else "the model is not a transformers model"
        )
        return
    try:
        known: dict[str, Any] = importlib.import_module(_LIGER_PATCHES).MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError as error:  # for example if the installed transformers is too old for Liger-Kernel
        applied.refuse(f"Liger-Kernel cannot be imported: {str(error).partition('. ')[0]}")
        return
    kind = inner.config.model_type
    apply = known.get(kind)
    given = inspect.signature(apply).parameters if apply is not None else {}
    switches = {name: name == _LIGER_LOSS for name, each in given.items() if isinstance(each.default, bool)}
    if apply is None or not any(switches.values()):
        applied.refuse(f"Liger-Kernel has no loss for models of type {kind}")
        return
    apply(model=inner, **switches)
    applied.took_effect()


# ---- source code


def _has_liger() -> bool:
    return importlib.util.find_spec("liger_kernel") is not None


def _liger_for(model: ModelFacts | None) -> ast.FunctionDef | None:
    spec = importlib.util.find_spec("liger_kernel") if model is not None and model.model_type else None
    folders = spec.submodule_search_locations if spec is not None else None
    file = Path(next(iter(folders or ()), "")) / "transformers" / "monkey_patch.py"
    return _functions_of(str(file)).get(model.model_type) if folders and model is not None else None


# The source code is parsed, because an import would import torch.
@functools.cache
def _functions_of(file: str) -> Mapping[str, ast.FunctionDef]:
    try:
        body = parse(source_of(file)).body
    except NotCertain:
        return {}
    known = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    able = {name: node for name, node in known.items() if _LIGER_LOSS in _switches_of(node)}
    tables = [node.value for node in body if isinstance(node, ast.Assign | ast.AnnAssign)]
    pairs = [
        pair for table in tables if isinstance(table, ast.Dict) for pair in zip(table.keys, table.values, strict=True)
    ]
    return {
        str(key.value): able[value.id]
        for key, value in pairs
        if isinstance(key, ast.Constant) and isinstance(value, ast.Name) and value.id in able
    }


def _switches_of(function: ast.FunctionDef) -> tuple[str, ...]:
    given = function.args.args[len(function.args.args) - len(function.args.defaults) :]
    pairs = [
        *zip(given, function.args.defaults, strict=True),
        *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True),
    ]
    return tuple(each.arg for each, value in pairs if isinstance(value, ast.Constant) and isinstance(value.value, bool))


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    if setting.startswith(_LINEAR):
        return _linear_recipe(facts.model, setting.removeprefix(_LINEAR))
    if setting == _LIGER:
        return _liger_recipe(facts.model)
    function = text_of_function(_MODULE).replace(f"rows={_ROWS}", f"rows={setting}")
    snippet = f"{function}\n\n\nloss = {_NAME}(logits, targets)"
    try:
        return Recipe(snippet=snippet, edits=tuple(_edits(facts, function)))
    except NotCertain:
        return Recipe(snippet=snippet)


def _linear_recipe(model: ModelFacts | None, path: str) -> Recipe:
    function = text_of_function(_LATER)
    known = next((each for each in (model.names if model else ()) if each.assigned is not None), None)
    name = known.name if known is not None else "model"
    text = f"LaterLogits.in_training({_module_at(name, path)})"
    snippet = f"import torch\n\n\n{function}\n\n\n{text}"
    if known is None or known.assigned is None:
        return Recipe(snippet=snippet)
    inserted = InsertAfter(file=known.assigned.file, line=known.assigned.line, text=text)
    return Recipe.placed(snippet, lambda: [inserted, *copied_into(inserted.file, function, ("import torch",))])


def _module_at(name: str, path: str) -> str:
    if all(part.isidentifier() for part in path.split(".")):
        return f"{name}.{path}"
    return f'{name}.get_submodule("{path}")'


def _liger_recipe(model: ModelFacts | None) -> Recipe:
    function = _liger_for(model)
    known = next((each for each in (model.names if model else ()) if each.assigned is not None), None)
    path = f".{model.transformers_path}" if model is not None and model.transformers_path else ""
    if function is None:
        return Recipe(snippet="", why_not="Liger-Kernel has no loss for this model")
    switches = ", ".join(f"{name}={name == _LIGER_LOSS}" for name in _switches_of(function))
    text = f"{function.name}(model={known.name if known is not None else 'model'}{path}, {switches})"
    imported = f"from liger_kernel.transformers import {function.name}"
    snippet = f"{imported}\n{text}"
    if known is None or known.assigned is None:
        return Recipe(snippet=snippet)
    file, line = known.assigned.file, known.assigned.line
    return Recipe(
        snippet=snippet,
        edits=(AddImport(file=file, text=imported), InsertAfter(file=file, line=line, text=text)),
    )


def _edits(facts: TrainingFacts, function: str) -> list[SourceEdit]:
    large = [each for each in _large(facts) if each.is_users and each.rows > _ROWS]
    edits: list[SourceEdit] = []
    for file in {each.place.file for each in large}:
        edits += copied_into(file, function, ("import torch", "import torch.utils.checkpoint"))
    edits += [
        ReplaceCall(file=each.place.file, line=each.place.line, function="cross_entropy", replacement=_NAME)
        for each in large
    ]
    return edits


def _title_for(setting: str) -> str:
    if setting.startswith(_LINEAR):
        return "PyTorch's linear_cross_entropy"
    return "Liger-Kernel's fused loss" if setting == _LIGER else "chunked loss"


CHANGE: Final = Change(
    key="fused_loss",
    name="chunked loss",
    title_for=_title_for,
    cost=ChangeCost.TIME,
    gradients=Gradients.ROUNDING,
    explanation="the loss is computed for some rows of logits at a time, and the log-softmax is never stored for all",
    settings_for=_settings_for,
    install=_install,
    recipe_for=_recipe_for,
)
