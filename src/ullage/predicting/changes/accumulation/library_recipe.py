"""Turn on gradient accumulation by an argument of the training library that runs the loop."""

import ast
from typing import Final

from ullage.predicting.changes.source import source_of
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.edit import AddKeyword, NotCertain, Recipe
from ullage.predicting.editing.scope import called_name, operand, parse, spans

LIBRARIES: Final = frozenset({"transformers", "lightning"})
_BATCH: Final = "per_device_train_batch_size"
_STEPS: Final = {
    "transformers": "gradient_accumulation_steps",
    "lightning": "accumulate_grad_batches",
    "accelerate": "gradient_accumulation_steps",
}
# These classes have a constructor argument for the number of batches per optimizer step.
_MAKERS: Final = {"lightning": "Trainer", "accelerate": "Accelerator"}


def takes_argument(facts: TrainingFacts) -> bool:
    """Return whether the library that runs the training loop has an argument for gradient accumulation.

    For Accelerate, the loop must also run inside `accelerator.accumulate`.
    """
    return accumulates(_file(facts)) if facts.loop.library == "accelerate" else facts.loop.library in LIBRARIES


def accumulates(file: str) -> bool:
    """Return whether a file has a loop inside Accelerate's `accelerator.accumulate`."""
    return any(
        isinstance(node, ast.withitem)
        and isinstance(node.context_expr, ast.Call)
        and called_name(node.context_expr) == "accumulate"
        for node in ast.walk(_tree_of(file))
    )


def _tree_of(file: str) -> ast.Module:
    try:
        return parse(source_of(file))
    except NotCertain:
        return ast.Module(body=[], type_ignores=[])


def library_recipe(facts: TrainingFacts, parts: int) -> Recipe:
    """Return the source code that turns on gradient accumulation in the training library."""
    library = facts.loop.library
    items = facts.items or parts
    calls = [node for node in ast.walk(_tree_of(_file(facts))) if isinstance(node, ast.Call)]
    if library == "transformers":
        return _transformers(facts, calls, items, parts)
    maker, steps = _MAKERS[library], _STEPS[library]
    makers = [_multiplied(facts, call, steps, parts) for call in calls if called_name(call) == maker]
    loaders = [_divided(facts, call, "batch_size", parts) for call in calls if called_name(call) == "DataLoader"]
    edits = [edit for edit in (*makers, *loaders) if edit is not None]
    is_certain = len(makers) == 1 and loaders and len(edits) == len(makers) + len(loaders)
    snippet = f"DataLoader(..., batch_size={items // parts})\n{maker}(..., {steps}={parts})"
    return Recipe(snippet=snippet, edits=tuple(edits) if is_certain else ())


def _transformers(facts: TrainingFacts, calls: list[ast.Call], items: int, parts: int) -> Recipe:
    steps = _STEPS["transformers"]
    call = facts.loop.library_call
    line, name = (call.place.line, call.function) if call is not None else (0, "TrainingArguments")
    for each in calls:
        if called_name(each) == name and spans(each, line):
            batch, taken = _divided(facts, each, _BATCH, parts), _multiplied(facts, each, steps, parts)
            if batch is None and not _has(each, _BATCH) and not each.args:
                batch = _keyword(
                    facts, each, _BATCH, str(items // parts)
                )  # the library's default batch size, which is divided too
            edits = [edit for edit in (batch, taken) if edit is not None]
            snippet = ", ".join(f"{edit.keyword}={edit.value}" for edit in edits)
            if len(edits) == 2:
                return Recipe(snippet=snippet, edits=tuple(edits))
    if any(called_name(each) == "HfArgumentParser" for each in calls):
        words = (f"--{_BATCH}", str(items // parts), f"--{steps}", str(parts))
        return Recipe(snippet=" ".join(words), arguments=words)
    return Recipe(snippet=f"{_BATCH}={items // parts}, {steps}={parts}")


def _file(facts: TrainingFacts) -> str:
    loop, call = facts.loop, facts.loop.library_call
    places = (call.place if call is not None else None, loop.backward, loop.forward, loop.step)
    return next((place.file for place in places if place is not None), "")


def _divided(facts: TrainingFacts, call: ast.Call, keyword: str, parts: int) -> AddKeyword | None:
    value = next((each.value for each in call.keywords if each.arg == keyword), None)
    if value is None:
        return None
    if isinstance(value, ast.Constant):
        batch = value.value
        if not isinstance(batch, int) or batch < parts or batch % parts:
            return None
        return _keyword(facts, call, keyword, str(batch // parts))
    return _keyword(facts, call, keyword, f"{operand(value)} // {parts}")


def _multiplied(facts: TrainingFacts, call: ast.Call, keyword: str, parts: int) -> AddKeyword | None:
    value = next((each.value for each in call.keywords if each.arg == keyword), None)
    if value is None:
        return None if _has(call, keyword) else _keyword(facts, call, keyword, str(parts))
    if isinstance(value, ast.Constant):
        count = value.value if isinstance(value.value, int) else 1 if value.value is None else None
        return _keyword(facts, call, keyword, str(count * parts)) if count is not None else None
    return _keyword(facts, call, keyword, f"{operand(value)} * {parts}")


def _keyword(facts: TrainingFacts, call: ast.Call, keyword: str, value: str) -> AddKeyword:
    return AddKeyword(file=_file(facts), line=call.lineno, function=called_name(call), keyword=keyword, value=value)


def _has(call: ast.Call, keyword: str) -> bool:
    return any(each.arg in (keyword, None) for each in call.keywords)
