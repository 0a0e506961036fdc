"""Turn off autocast's cache of cast weights in a script that uses activation checkpointing."""

# Autocast casts a trained weight once, and keeps the copy until its context ends (`cached_cast` in
# ATen/autocast_mode.cpp, torch 2.11). Without checkpointing, the graph saves the same copy for the backward pass, so
# the cache costs nothing. A checkpointed block saves no copy; then only the cache keeps it alive.

from collections.abc import Callable
from typing import Any, Final

from ullage.predicting.changes.change import Applicable, AppliedChange, Change, ChangeCost, Gradients
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.changes.training.wrapping import wrap
from ullage.predicting.editing.edit import AddKeyword, Recipe

_KEYWORD: Final = "cache_enabled"


def _settings_for(facts: TrainingFacts) -> Applicable:
    loop = facts.loop
    return Applicable.unless(
        (loop.autocast is None, "the forward pass does not run under autocast"),
        (not loop.checkpoints, "the script does not use activation checkpointing, so the graph keeps the same copies"),
        (not loop.autocast_caches, "the cache is off already"),
    )


def _install(applied: AppliedChange) -> None:
    def enter(entered: Callable[[Any], Any], context: Any) -> Any:
        if context.device == "cuda" and context._enabled and context._cache_enabled:
            context._cache_enabled = False
            applied.took_effect()
        return entered(context)

    wrap(applied.loop.torch.amp.autocast_mode.autocast, "__enter__", enter)


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    place = facts.loop.autocast_entered
    snippet = f'with torch.autocast("cuda", {_KEYWORD}=False):\n    loss = ...'
    if place is None:
        return Recipe(snippet=snippet)
    edit = AddKeyword(file=place.file, line=place.line, function="autocast", keyword=_KEYWORD, value="False")
    return Recipe(snippet=snippet, edits=(edit,))


CHANGE: Final = Change(
    key="autocast_cache",
    name="no cache of autocast",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.SAME,
    explanation=(
        "autocast casts a weight at each use, and does not keep the cast copies of checkpointed blocks until its "
        "context ends"
    ),
    settings_for=_settings_for,
    install=_install,
    recipe_for=_recipe_for,
)
