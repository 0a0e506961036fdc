"""Activation checkpointing, written by hand: lines behind the statement that assigns the model."""

from ullage.predicting.changes.activations.block_choice import ALL, expression, positions, setting_of
from ullage.predicting.changes.source.user_source import source_of
from ullage.predicting.changes.training.facts import CodePlace, ModelFacts, TrainingFacts
from ullage.predicting.editing.edit import AddImport, AddKeyword, InsertAfter, NotCertain, Recipe
from ullage.predicting.editing.scope import free_name, parse, scope_of

_SWITCH = 'gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})'


def recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    """Return how blocks are checkpointed in a script."""
    model, call = facts.model, facts.loop.library_call
    if model is None:
        return Recipe(snippet="model.gradient_checkpointing_enable()")
    if setting == ALL and facts.loop.library == "transformers" and call is not None:
        values = {"gradient_checkpointing": "True", "gradient_checkpointing_kwargs": '{"use_reentrant": False}'}
        keywords = tuple(
            AddKeyword(file=call.place.file, line=call.place.line, function=call.function, keyword=name, value=value)
            for name, value in values.items()
        )
        given = ", ".join(f"{name}={value}" for name, value in values.items())
        return Recipe(snippet=f"{call.function}(..., {given})", edits=keywords)
    known = next((each for each in model.names if each.assigned is not None), None)
    if known is None or known.assigned is None:
        return Recipe(snippet=lines_for(model, "model", setting, "block"))
    text = lines_for(model, known.name, setting, _block_name(known.assigned))
    file, line = known.assigned.file, known.assigned.line
    imports = () if model.transformers_path is not None else ("import functools", "import torch.utils.checkpoint")
    added = [AddImport(file=file, text=each) for each in imports]
    return Recipe(snippet=text, edits=(InsertAfter(file=file, line=line, text=text), *added))


def _block_name(place: CodePlace) -> str:
    """Return a name for the loop's variable that the function does not use yet."""
    try:
        return free_name(scope_of(parse(source_of(place.file)), place.function), "block")
    except NotCertain:
        return "block"


def lines_for(model: ModelFacts, name: str, setting: str, block: str) -> str:
    """Return the lines that checkpoint the blocks of a model with a name."""
    lists = [(each.path, each.count) for each in model.block_lists]
    if model.transformers_path is None:
        return (
            f"for {block} in {expression(name, setting, lists)}:\n"
            f"    {block}.forward = functools.partial(\n"
            f"        torch.utils.checkpoint.checkpoint, {block}.forward, use_reentrant=False\n    )"
        )
    whole = f"{name}.{model.transformers_path}" if model.transformers_path else name
    chosen = set(positions(setting, lists))
    others = [each for each in positions(ALL, lists) if each not in chosen]
    switch = f"{whole}.{_SWITCH}"
    if not others:
        return switch
    rest = expression(name, setting_of(others, lists), lists)
    return f"{switch}\nfor {block} in {rest}:\n    {block}.gradient_checkpointing = False"
