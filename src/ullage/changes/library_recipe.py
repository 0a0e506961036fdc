"""How accumulation is written for a loop of a library's: its own arguments."""

import ast
from typing import Final

from ullage.changes.facts import TrainingFacts
from ullage.changes.user_source import source_of
from ullage.editing.edit import AddKeyword, NotCertain, Recipe
from ullage.editing.scope import parse

LIBRARIES: Final = frozenset({"transformers", "lightning"})
_BATCH: Final = "per_device_train_batch_size"
_STEPS: Final = "gradient_accumulation_steps"


def library_recipe(facts: TrainingFacts, parts: int) -> Recipe:
    """Return the recipe for transformers' or Lightning's loop."""
    items = facts.items or parts
    try:
        calls = _calls(facts)
    except NotCertain:
        calls = []
    if facts.loop.library == "lightning":
        snippet = f"DataLoader(..., batch_size={items // parts})\nTrainer(..., accumulate_grad_batches={parts})"
        edits = [each for call in calls for each in _lightning(facts, call, parts)]
        return Recipe(snippet=snippet, edits=tuple(edits) if len(edits) == 2 else ())
    snippet = f"{_BATCH}={items // parts}, {_STEPS}={parts}"
    edits = [each for call in calls for each in _transformers(facts, call, parts)]
    return Recipe(snippet=snippet, edits=tuple(edits) if len(edits) == 2 else ())


def _calls(facts: TrainingFacts) -> list[ast.Call]:
    return [node for node in ast.walk(parse(source_of(_file(facts)))) if isinstance(node, ast.Call)]


def _file(facts: TrainingFacts) -> str:
    places = (facts.loop.backward, facts.loop.forward, facts.loop.step)
    file = next((place.file for place in places if place is not None), None)
    if file is None:
        raise NotCertain("no line of the user's trains")
    return file


def _transformers(facts: TrainingFacts, call: ast.Call, parts: int) -> list[AddKeyword]:
    """Return the edits of a call that says the batch size of transformers' arguments in figures."""
    batch, steps = _figure(call, _BATCH), _figure(call, _STEPS)
    if batch is None or batch % parts or (steps is None and _has(call, _STEPS)):
        return []
    return [
        _keyword(facts, call, _BATCH, batch // parts),
        _keyword(facts, call, _STEPS, (steps or 1) * parts),
    ]


def _lightning(facts: TrainingFacts, call: ast.Call, parts: int) -> list[AddKeyword]:
    """Return the edit of a call that makes a loader or the trainer."""
    name = _last_name(call)
    if name == "DataLoader":
        batch = _figure(call, "batch_size")
        return [_keyword(facts, call, "batch_size", batch // parts)] if batch and batch % parts == 0 else []
    if name == "Trainer":
        steps = _figure(call, "accumulate_grad_batches")
        if steps is None and _has(call, "accumulate_grad_batches"):
            return []
        return [_keyword(facts, call, "accumulate_grad_batches", (steps or 1) * parts)]
    return []


def _keyword(facts: TrainingFacts, call: ast.Call, keyword: str, value: int) -> AddKeyword:
    return AddKeyword(file=_file(facts), line=call.lineno, function=_last_name(call), keyword=keyword, value=str(value))


def _figure(call: ast.Call, keyword: str) -> int | None:
    values = [each.value for each in call.keywords if each.arg == keyword]
    value = values[0] if values else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, int) else None


def _has(call: ast.Call, keyword: str) -> bool:
    return any(each.arg in (keyword, None) for each in call.keywords)


def _last_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
