"""Activation checkpointing of repeated blocks: the backward pass recomputes their activations."""

import functools
from typing import Any, Final

from ullage.base.errors import UsageError
from ullage.predicting.changes.activations.block_choice import (
    ALL,
    EVERY_SECOND,
    FIRST,
    ONLY,
    choices,
    expression,
    positions,
    setting_of,
)
from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.copied_function import copied_into, text_of_function
from ullage.predicting.changes.source import source_of
from ullage.predicting.changes.training.facts import CodePlace, ModelFacts, TrainingFacts
from ullage.predicting.editing.edit import AddImport, AddKeyword, InsertAfter, NotCertain, Recipe, SourceEdit
from ullage.predicting.editing.scope import free_name, parse, scope_of

_SWITCH: Final = 'gradient_checkpointing_enable(gradient_checkpointing_kwargs={{"use_reentrant": False{kept}}})'
_KEPT: Final = "ullage.predicting.changes.activations.kept_statistics"


def _settings_for(facts: TrainingFacts) -> Applicable:
    model = facts.model
    if model is None:
        return Applicable(why_not="no module was called in training mode with gradients")
    if facts.loop.checkpoints:
        return Applicable(why_not="the script uses activation checkpointing already")
    if model.is_compiled:
        return Applicable(why_not="the model is compiled, and torch.compile decides which activations a graph saves")
    count = sum(each.count for each in model.block_lists)
    if not count:
        return Applicable(
            why_not="the model has no repeated blocks: no list of modules of one class with layers inside"
        )
    # Blocks are chosen one by one, except for old models of transformers, which have one switch for all blocks.
    if model.transformers_path is not None and not all(each.has_switch for each in model.block_lists):
        return Applicable(settings=(ALL,))
    return Applicable(settings=(*(each for each in _settings(model, count) if each != ALL), ALL))


# The first setting saves the least memory. If the costs of the blocks are known, settings recompute as little as
# possible.
def _settings(model: ModelFacts, count: int) -> list[str]:
    lists = [(each.path, each.count) for each in model.block_lists]
    saved = [size for each in model.block_lists for size in each.saved_by_block]
    flops = [number for each in model.block_lists for number in each.flops_by_block]
    if len(saved) != count or len(flops) != count:
        return [f"{FIRST}{number}" for number in range(1, count)]
    every = positions(ALL, lists)
    return [setting_of([every[number] for number in chosen], lists) for chosen in choices(saved, flops)]


def _checkpoint(applied: AppliedChange, module: Any) -> None:
    from ullage.predicting.changes.training import model_structure
    from ullage.predicting.changes.training.repeated_effects import tracks_statistics

    model, _, is_compiled = model_structure.unwrapped(module)
    if is_compiled or model_structure.has_compiled_part(model):
        applied.refuse("the model is compiled, and torch.compile decides which activations a graph saves")
        return
    lists = model_structure.blocks_of(model)
    if not lists:
        # A step may call several modules: Lightning's step calls submodules of the Lightning module.
        if not applied.loop.effects[applied.text]:
            applied.refuse(f"{type(model).__name__} has no repeated blocks")
        return
    try:
        chosen = positions(applied.setting, [(each.path, len(each.modules)) for each in lists])
    except UsageError as error:
        applied.refuse(str(error))
        return
    keeps = any(tracks_statistics(part) for each in lists for block in each.modules for part in block.modules())
    _, inner = model_structure.transformers_in(model)
    if inner is not None:
        if not _switch_on(inner, lists, chosen, _context_for(inner) if keeps else {}):
            applied.refuse(f"{type(model).__name__} cannot checkpoint single blocks")
            return
    else:
        import torch.utils.checkpoint

        for number, place in chosen:
            block = lists[number].modules[place]
            function = torch.utils.checkpoint.checkpoint
            given = _context_for(block) if keeps else {}
            block.forward = functools.partial(function, block.forward, use_reentrant=False, **given)
    applied.took_effect(len(chosen))
    applied.loop.refusals.pop(applied.text, None)


def _context_for(module: Any) -> dict[str, Any]:
    from ullage.predicting.changes.activations.kept_statistics import kept_statistics

    return {"context_fn": functools.partial(kept_statistics, module)}


def _switch_on(model: Any, lists: Any, chosen: list[tuple[int, int]], given: dict[str, Any]) -> bool:
    from ullage.predicting.changes.training.model_structure import has_switch

    others = [
        block
        for number, each in enumerate(lists)
        for place, block in enumerate(each.modules)
        if (number, place) not in set(chosen)
    ]
    if not getattr(model, "supports_gradient_checkpointing", False) or not all(map(has_switch, others)):
        return False
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False, **given})
    for block in others:
        block.gradient_checkpointing = False
    return True


def _title_for(setting: str) -> str:
    chosen = {ALL: "", EVERY_SECOND: " of every second block"}
    if setting.startswith(FIRST):
        count = int(setting.removeprefix(FIRST))
        return f"activation checkpointing of the first {'block' if count == 1 else f'{count} blocks'}"
    return f"activation checkpointing{chosen.get(setting, f' of {setting.removeprefix(ONLY)}')}"


def _added_flops(facts: TrainingFacts, setting: str) -> int:
    lists = facts.model.block_lists if facts.model is not None else []
    chosen = positions(setting, [(each.path, each.count) for each in lists])
    return sum(
        lists[number].flops_by_block[place] if lists[number].flops_by_block else lists[number].forward_flops
        for number, place in chosen
    )


def _repeated_effect(facts: TrainingFacts) -> str:
    return facts.model.repeated_effect if facts.model is not None else ""


def _remark_for(facts: TrainingFacts) -> str:
    if effect := _repeated_effect(facts):
        return f"{effect}; the recomputation does so again, which may alter training results"
    if facts.model is not None and _keeps(facts.model):
        return "the recomputation leaves running statistics as the forward pass has set them"
    return ""


# ---- source code


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    model, call = facts.model, facts.loop.library_call
    if model is None:
        return Recipe(snippet="model.gradient_checkpointing_enable()")
    keeps = _keeps(model)
    if setting == ALL and facts.loop.library == "transformers" and call is not None and not keeps:
        values = {"gradient_checkpointing": "True", "gradient_checkpointing_kwargs": '{"use_reentrant": False}'}
        keywords = tuple(
            AddKeyword(file=call.place.file, line=call.place.line, function=call.function, keyword=name, value=value)
            for name, value in values.items()
        )
        given = ", ".join(f"{name}={value}" for name, value in values.items())
        return Recipe(snippet=f"{call.function}(..., {given})", edits=keywords)
    function = text_of_function(_KEPT) if keeps else ""
    known = next((each for each in model.names if each.assigned is not None), None)
    if known is None or known.assigned is None:
        return Recipe(snippet=_joined(function, _lines_for(model, "model", setting, "block")))
    text = _lines_for(model, known.name, setting, _block_name(known.assigned))
    file, line = known.assigned.file, known.assigned.line
    inserted = InsertAfter(file=file, line=line, text=text)

    def edits() -> list[SourceEdit]:
        imports = ["import functools"] if keeps or model.transformers_path is None else []
        imports += ["import torch.utils.checkpoint"] if model.transformers_path is None else []
        if not keeps:
            return [inserted, *(AddImport(file=file, text=each) for each in imports)]
        return [inserted, *copied_into(file, function, ["import contextlib", *imports, "import torch"])]

    return Recipe.placed(_joined(function, text), edits)


def _keeps(model: ModelFacts) -> bool:
    return any(each.has_statistics for each in model.block_lists)


def _joined(function: str, text: str) -> str:
    return f"{function}\n\n\n{text}" if function else text


def _block_name(place: CodePlace) -> str:
    try:
        return free_name(scope_of(parse(source_of(place.file)), place.function), "block")
    except NotCertain:
        return "block"


def _lines_for(model: ModelFacts, name: str, setting: str, block: str) -> str:
    lists = [(each.path, each.count) for each in model.block_lists]
    if model.transformers_path is None:
        kept = f", context_fn=functools.partial(kept_statistics, {block})" if _keeps(model) else ""
        return (
            f"for {block} in {expression(name, setting, lists)}:\n"
            f"    {block}.forward = functools.partial(\n"
            f"        torch.utils.checkpoint.checkpoint, {block}.forward, use_reentrant=False{kept}\n    )"
        )
    whole = f"{name}.{model.transformers_path}" if model.transformers_path else name
    chosen = set(positions(setting, lists))
    others = [each for each in positions(ALL, lists) if each not in chosen]
    kept = f', "context_fn": functools.partial(kept_statistics, {whole})' if _keeps(model) else ""
    switch = f"{whole}.{_SWITCH.format(kept=kept)}"
    if not others:
        return switch
    rest = expression(name, setting_of(others, lists), lists)
    return f"{switch}\nfor {block} in {rest}:\n    {block}.gradient_checkpointing = False"


CHANGE: Final = Change(
    key="checkpoint",
    name="activation checkpointing",
    cost=ChangeCost.TIME,
    gradients=Gradients.SAME,
    explanation="the chosen blocks keep only their inputs for the backward pass, which recomputes their activations",
    title_for=_title_for,
    gradients_for=lambda facts: Gradients.UNKNOWN if _repeated_effect(facts) else Gradients.SAME,
    remark_for=_remark_for,
    settings_for=_settings_for,
    added_flops=_added_flops,
    install=lambda applied: applied.loop.before_first_forward.append(lambda module, _: _checkpoint(applied, module)),
    recipe_for=_recipe_for,
)
