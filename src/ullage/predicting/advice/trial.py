"""Changes with a setting: those that are worth a run of a script, a combination of them, and what came of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ullage.predicting.changes.all_changes import CHANGES
from ullage.predicting.changes.change import Applicable, Change, ChangeCost, Gradients, text_of
from ullage.predicting.changes.source import source_of
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.apply import edited
from ullage.predicting.editing.edit import SourceEdit
from ullage.predicting.prediction.changed_request import changed, makes_a_difference
from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.request import Request

_OTHER: Final = frozenset({Gradients.UNKNOWN, Gradients.CHANGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSetting:
    """A change and the setting that it is made with."""

    change: Change
    setting: str

    @property
    def text(self) -> str:
        """How a request names it: `key=setting`."""
        return text_of(self.change, self.setting)

    @property
    def title(self) -> str:
        """The name for people."""
        return self.change.title(self.setting)

    def is_edit(self, facts: TrainingFacts) -> bool:
        """Tell whether it is made by running edited texts in place of the user's files."""
        return self.change.is_edit is not None and self.change.is_edit(facts, self.setting)

    def gradients(self, facts: TrainingFacts) -> Gradients:
        """Tell how the gradients compare with it."""
        return self.change.gradients_for(facts) if self.change.gradients_for is not None else self.change.gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Changes that are made together, the cheapest first."""

    parts: tuple[ChangeSetting, ...]

    @property
    def title(self) -> str:
        """The names for people, joined."""
        names = [part.title for part in self.parts]
        return ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1] if names else "no change"

    @property
    def cost(self) -> ChangeCost:
        """The dearest part's cost."""
        return max((part.change.cost for part in self.parts), default=ChangeCost.NOTHING)

    def gradients(self, facts: TrainingFacts) -> Gradients:
        """Tell how the gradients compare: as those of the part that differs most."""
        order = list(Gradients)
        return max((part.gradients(facts) for part in self.parts), key=order.index, default=Gradients.SAME)

    def request(self, request: Request, facts: TrainingFacts) -> Request:
        """Return the request with every change made from outside: by hooks, or by edited texts in place of files.

        Raises:
            NotCertain: two changes cannot be written beside each other.
        """
        edits: dict[str, list[SourceEdit]] = {}
        for part in self.parts:
            if part.is_edit(facts):
                for edit in part.change.recipe_for(facts, part.setting).edits:
                    edits.setdefault(edit.file, []).append(edit)
            else:
                request = changed(request, part.change, part.setting)
        texts = {file: edited(source_of(file), each, file=file) for file, each in edits.items()}
        return replace(request, edited={**request.edited, **texts}) if texts else request

    def with_part(self, part: ChangeSetting) -> "Combination":
        """Return this with a change more; one of the same change is replaced."""
        others = [each for each in self.parts if each.change.key != part.change.key]
        return combination([*others, part])

    def without(self, part: ChangeSetting) -> "Combination":
        """Return this with a change less."""
        return Combination(parts=tuple(each for each in self.parts if each != part))


def combination(parts: Sequence[ChangeSetting]) -> Combination:
    """Return changes together, in the order of their cost."""
    return Combination(parts=tuple(sorted(parts, key=lambda part: part.change.cost)))


def excludes(first: ChangeSetting, second: ChangeSetting) -> bool:
    """Tell whether two changes cannot be made together."""
    return (
        first.change.key == second.change.key
        or second.change.key in first.change.excludes
        or first.change.key in second.change.excludes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTrial:
    """A combination that was run, or could not be."""

    combination: Combination
    prediction: Prediction | None = None
    """The run; None where it could not be made."""
    problem: str = ""
    """Why it could not be made, or had no effect: one sentence without a full stop."""

    fits: bool = False
    """Whether a run proves that the script fits with it, at both ends of the interval."""

    @property
    def need_bytes(self) -> int | None:
        """What would be used of the card at most; None where nobody knows, as memory ran out."""
        found = self.prediction
        return None if found is None or found.oom is not None or self.problem else found.interval_bytes[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMade:
    """A change that cannot be made in this script."""

    change: Change
    why: str
    """One sentence without a full stop."""


def candidates_of(facts: TrainingFacts, request: Request) -> tuple[dict[str, list[ChangeSetting]], list[NotMade]]:
    """Return the settings to try in such a run, by change, the mildest first; and the changes that cannot be made."""
    settings: dict[str, list[ChangeSetting]] = {}
    not_made = []
    for change in CHANGES:
        applicable, here = change.settings_for(facts), _as_dear_as(change, facts)
        if change.world_size is not None and (request.options["world_size"] or request.is_command):
            applicable = Applicable(why_not="the run has several processes already, or is a command that starts them")
        wanted = [
            ChangeSetting(change=here, setting=setting)
            for setting in applicable.settings
            if makes_a_difference(request, change, setting)
        ]
        if wanted:
            settings[change.key] = wanted
        else:
            why = applicable.why_not or "the run has it already"
            not_made.append(NotMade(change=change, why=why))
    return settings, not_made


def _as_dear_as(change: Change, facts: TrainingFacts) -> Change:
    """Return a change with what it costs in this run: no less than other numbers if the gradients may be others."""
    is_other = change.gradients_for is not None and change.gradients_for(facts) in _OTHER
    return replace(change, cost=max(change.cost, ChangeCost.NUMERICS)) if is_other else change
