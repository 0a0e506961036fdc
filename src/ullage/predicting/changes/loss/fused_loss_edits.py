"""A loss by chunks, written by hand: a function of a few lines in the script, and its calls in place of the others."""

import ast
import functools
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ullage.predicting.changes.source.user_source import source_of
from ullage.predicting.changes.training.facts import ModelFacts, TrainingFacts
from ullage.predicting.editing.edit import (
    AddImport,
    InsertAfter,
    InsertBefore,
    NotCertain,
    Recipe,
    ReplaceCall,
    SourceEdit,
)
from ullage.predicting.editing.scope import parse

LIGER: Final = "liger"
ROWS: Final = 1024
"""The number of rows that are computed at a time."""
LARGE: Final = 1 << 20
"""The number of logits from which on their log-softmax counts as large."""
_MODULE: Final = "ullage.predicting.changes.loss.chunked_cross_entropy"
_NAME: Final = "chunked_cross_entropy"


_LIGER_LOSS: Final = "fused_linear_cross_entropy"
"""The switch of Liger-Kernel's functions that replaces the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LigerFunction:
    """The function of Liger-Kernel that replaces parts of models of one type."""

    name: str
    switches: tuple[str, ...]
    """Its arguments that are True or False."""

    def call(self, model: str) -> str:
        """Return the call that replaces the loss of a model and nothing else."""
        values = ", ".join(f"{name}={name == _LIGER_LOSS}" for name in self.switches)
        return f"{self.name}(model={model}, {values})"


def has_liger() -> bool:
    """Tell whether Liger-Kernel is installed."""
    return importlib.util.find_spec("liger_kernel") is not None


def liger_switches(apply: Callable[..., Any]) -> dict[str, bool]:
    """Return the arguments by which Liger-Kernel replaces the loss of a model and nothing else."""
    switches = {name for name, each in inspect.signature(apply).parameters.items() if isinstance(each.default, bool)}
    return {name: name == _LIGER_LOSS for name in switches}


def liger_for(model: ModelFacts | None) -> LigerFunction | None:
    """Return the function that replaces a model's loss; None where Liger-Kernel is not installed or has none."""
    spec = importlib.util.find_spec("liger_kernel") if model is not None and model.model_type else None
    folders = spec.submodule_search_locations if spec is not None else None
    file = Path(next(iter(folders or ()), "")) / "transformers" / "monkey_patch.py"
    return _functions_of(str(file)).get(model.model_type) if folders and model is not None else None


@functools.cache
def _functions_of(file: str) -> Mapping[str, LigerFunction]:
    """Return what Liger-Kernel has for each type of model; its text is read, as to import it is to import torch."""
    try:
        body = parse(source_of(file)).body
    except NotCertain:
        return {}
    known = {node.name: _switches_of(node) for node in body if isinstance(node, ast.FunctionDef)}
    tables = [node.value for node in body if isinstance(node, ast.Assign | ast.AnnAssign)]
    pairs = [
        pair for table in tables if isinstance(table, ast.Dict) for pair in zip(table.keys, table.values, strict=True)
    ]
    return {
        str(key.value): LigerFunction(name=value.id, switches=known[value.id])
        for key, value in pairs
        if isinstance(key, ast.Constant) and isinstance(value, ast.Name) and _LIGER_LOSS in known.get(value.id, ())
    }


def _switches_of(function: ast.FunctionDef) -> tuple[str, ...]:
    given = function.args.args[len(function.args.args) - len(function.args.defaults) :]
    pairs = [
        *zip(given, function.args.defaults, strict=True),
        *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True),
    ]
    return tuple(each.arg for each, value in pairs if isinstance(value, ast.Constant) and isinstance(value.value, bool))


def recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    """Return how the loss is written in a script."""
    if setting == LIGER:
        return _liger_recipe(facts.model)
    function = _function_text().replace(f"rows={ROWS}", f"rows={setting}")
    snippet = f"{function}\n\n\nloss = {_NAME}(logits, targets)"
    try:
        return Recipe(snippet=snippet, edits=tuple(_edits(facts, function)))
    except NotCertain:
        return Recipe(snippet=snippet)


def _liger_recipe(model: ModelFacts | None) -> Recipe:
    """Return how Liger-Kernel's loss is written behind the statement that assigns the model."""
    function = liger_for(model)
    known = next((each for each in (model.names if model else ()) if each.assigned is not None), None)
    path = f".{model.transformers_path}" if model is not None and model.transformers_path else ""
    if function is None:
        return Recipe(snippet="", why_not="Liger-Kernel has no loss for this model")
    text = function.call(f"{known.name if known is not None else 'model'}{path}")
    imported = f"from liger_kernel.transformers import {function.name}"
    snippet = f"{imported}\n{text}"
    if known is None or known.assigned is None:
        return Recipe(snippet=snippet)
    file, line = known.assigned.file, known.assigned.line
    return Recipe(
        snippet=snippet,
        edits=(AddImport(file=file, text=imported), InsertAfter(file=file, line=line, text=text)),
    )


def _function_text() -> str:
    """Return the function's source, as it is put into a script."""
    spec = importlib.util.find_spec(_MODULE)
    text = source_of(spec.origin or "") if spec is not None else ""
    [function] = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    lines = text.splitlines()[function.lineno - 1 : function.end_lineno]
    return "\n".join(line.partition("  # ")[0] for line in lines)


def _edits(facts: TrainingFacts, function: str) -> list[SourceEdit]:
    large = [each for each in facts.losses if each.is_users and each.rows * each.classes >= LARGE and each.rows > ROWS]
    edits: list[SourceEdit] = []
    for file in {each.place.file for each in large}:
        edits.append(InsertBefore(file=file, line=_first_behind_imports(file), text=f"{function}\n\n"))
        edits += [AddImport(file=file, text=text) for text in ("import torch", "import torch.utils.checkpoint")]
    edits += [
        ReplaceCall(file=each.place.file, line=each.place.line, function="cross_entropy", replacement=_NAME)
        for each in large
    ]
    return edits


def _first_behind_imports(file: str) -> int:
    """Return the line of the first statement behind the imports at the top of a file."""
    for statement in parse(source_of(file)).body:
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if not is_text and not isinstance(statement, ast.Import | ast.ImportFrom):
            return statement.lineno
    raise NotCertain("the file has nothing but imports")
