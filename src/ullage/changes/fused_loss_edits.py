"""A loss by chunks, written by hand: a function of a few lines in the script, and its calls in place of the others."""

import ast
import importlib.util
import inspect
from collections.abc import Callable
from typing import Any, Final

from ullage.changes.facts import TrainingFacts
from ullage.changes.user_source import source_of
from ullage.editing.edit import AddImport, InsertBefore, NotCertain, Recipe, ReplaceCall, SourceEdit
from ullage.editing.scope import parse

LIGER: Final = "liger"
ROWS: Final = 1024
"""The number of rows that are computed at a time."""
LARGE: Final = 1 << 20
"""The number of logits from which on their log-softmax counts as large."""
_MODULE: Final = "ullage.changes.chunked_cross_entropy"
_NAME: Final = "chunked_cross_entropy"


def has_liger() -> bool:
    """Tell whether Liger-Kernel is installed."""
    return importlib.util.find_spec("liger_kernel") is not None


def liger_switches(apply: Callable[..., Any]) -> dict[str, bool]:
    """Return the arguments by which Liger-Kernel replaces the loss of a model and nothing else."""
    switches = {name for name, each in inspect.signature(apply).parameters.items() if isinstance(each.default, bool)}
    return {name: name == "fused_linear_cross_entropy" for name in switches}


def recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    """Return how the loss is written in a script."""
    if setting == LIGER:
        return Recipe(
            snippet="from liger_kernel.transformers import apply_liger_kernel_to_llama  # or of the model's own type\n"
            "apply_liger_kernel_to_llama(model=model, fused_linear_cross_entropy=True, rope=False, swiglu=False, "
            "rms_norm=False)"
        )
    function = _function_text().replace(f"rows={ROWS}", f"rows={setting}")
    snippet = f"{function}\n\n\nloss = {_NAME}(logits, targets)"
    try:
        return Recipe(snippet=snippet, edits=tuple(_edits(facts, function)))
    except NotCertain:
        return Recipe(snippet=snippet)


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
