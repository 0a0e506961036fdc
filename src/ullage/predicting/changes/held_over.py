"""Delete each variable that keeps a step's memory alive during the next step, right after its last use."""

from typing import Final

from ullage.predicting.changes.change import Applicable, Change, ChangeCost, Gradients
from ullage.predicting.changes.source import source_of
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.edit import InsertAfter, NotCertain, Recipe
from ullage.predicting.editing.release import released


def _edits(facts: TrainingFacts) -> tuple[tuple[InsertAfter, ...], str]:
    edits: list[InsertAfter] = []
    problem = ""
    for each in facts.held:
        place = each.place
        try:
            edits += released(
                source_of(place.file), file=place.file, function=place.function, lines={each.name: place.line}
            )
        except NotCertain as error:
            problem = f"{each.name}: {error}"
    return _joined(edits), problem


def _joined(edits: list[InsertAfter]) -> tuple[InsertAfter, ...]:
    names: dict[tuple[str, int], list[str]] = {}
    others = []
    for edit in edits:
        if edit.text.startswith("del "):
            names.setdefault((edit.file, edit.line), []).append(edit.text.removeprefix("del "))
        else:
            others.append(edit)
    joined = [
        InsertAfter(file=file, line=line, text=f"del {', '.join(found)}") for (file, line), found in names.items()
    ]
    return (*joined, *others)


def _settings_for(facts: TrainingFacts) -> Applicable:
    if not facts.held and facts.held_elsewhere:
        names = ", ".join(facts.held_elsewhere)
        return Applicable(why_not=f"objects other than local variables keep memory of the previous step: {names}")
    if not facts.held:
        return Applicable(why_not="no variable keeps memory of the previous step at the peak")
    edits, problem = _edits(facts)
    return Applicable(settings=("on",)) if edits else Applicable(why_not=problem)


def _recipe_for(facts: TrainingFacts, setting: str) -> Recipe:
    edits, _ = _edits(facts)
    names = ", ".join(dict.fromkeys(each.name for each in facts.held))
    return Recipe(snippet=f"del {names}", edits=edits)


CHANGE: Final = Change(
    key="held_over",
    name="variables deleted after their last use",
    cost=ChangeCost.NOTHING,
    gradients=Gradients.SAME,
    explanation="memory of the previous step that a variable keeps alive is freed before the next step is computed",
    settings_for=_settings_for,
    is_edit=lambda facts, setting: True,
    recipe_for=_recipe_for,
)
