"""Data classes for changes to a script, and for the results of runs with these changes."""

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
    """A change and one of its settings."""

    change: Change
    setting: str

    @property
    def text(self) -> str:
        """The change and its setting, as `key=setting`."""
        return text_of(self.change, self.setting)

    @property
    def title(self) -> str:
        """The name of the change in reports."""
        return self.change.title(self.setting)

    def is_edit(self, facts: TrainingFacts) -> bool:
        """Return whether ullage applies the change in edited copies of the user's files."""
        return self.change.is_edit is not None and self.change.is_edit(facts, self.setting)

    def gradients(self, facts: TrainingFacts) -> Gradients:
        """Return how the gradients with this change compare with those of the unchanged script."""
        return self.change.gradients_for(facts) if self.change.gradients_for is not None else self.change.gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """Changes that ullage applies to the script in the same run, sorted by cost."""

    parts: tuple[ChangeSetting, ...]

    @property
    def title(self) -> str:
        """The names of the changes for reports, joined by commas."""
        names = [part.title for part in self.parts]
        return ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1] if names else "no change"

    @property
    def cost(self) -> ChangeCost:
        """The cost of the most expensive change in the combination."""
        return max((part.change.cost for part in self.parts), default=ChangeCost.NOTHING)

    def gradients(self, facts: TrainingFacts) -> Gradients:
        """Return how the gradients with all these changes compare with those of the unchanged script."""
        order = list(Gradients)
        return max((part.gradients(facts) for part in self.parts), key=order.index, default=Gradients.SAME)

    def request(self, request: Request, facts: TrainingFacts) -> Request:
        """Return the request for a run of the script with every change of the combination.

        Raises:
            NotCertain: the source edits of two changes conflict.
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
        """Return this combination with a change added, or with its setting replaced."""
        others = [each for each in self.parts if each.change.key != part.change.key]
        return combination([*others, part])

    def without(self, part: ChangeSetting) -> "Combination":
        """Return this combination without the given change."""
        return Combination(parts=tuple(each for each in self.parts if each != part))


def combination(parts: Sequence[ChangeSetting]) -> Combination:
    """Combine changes, the cheapest first."""
    return Combination(parts=tuple(sorted(parts, key=lambda part: part.change.cost)))


def excludes(first: ChangeSetting, second: ChangeSetting) -> bool:
    """Return whether two changes cannot be applied together."""
    return (
        first.change.key == second.change.key
        or second.change.key in first.change.excludes
        or first.change.key in second.change.excludes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTrial:
    """A combination of changes, and the result of its run."""

    combination: Combination
    prediction: Prediction | None = None
    """The result of the run with this combination, or None if it was not run."""
    problem: str = ""
    """The reason why the run failed or the changes had no effect: one sentence without a full stop."""

    fits: bool = False
    """Whether the script fits, even at the upper end of the predicted memory range."""

    @property
    def need_bytes(self) -> int | None:
        """The peak GPU memory with this combination, in bytes, or None if memory ran out."""
        found = self.prediction
        return None if found is None or found.oom is not None or self.problem else found.interval_bytes[1]

    def pinned_bytes(self, need: Prediction) -> int:
        """Return the bytes of pinned host memory that the changes add to those of the unchanged script's run, `need`.

        Both are peaks, and include the rounding of PyTorch's allocator for pinned memory.
        """
        found = self.prediction
        if found is None or found.host is None or need.host is None:
            return 0
        return max(0, found.host.pinned_peak_bytes - need.host.pinned_peak_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMade:
    """A change that cannot be applied to the user's script, with the reason."""

    change: Change
    why: str
    """The reason why the change cannot be applied: one sentence without a full stop."""


def candidates_of(facts: TrainingFacts, request: Request) -> tuple[dict[str, list[ChangeSetting]], list[NotMade]]:
    """Return the changes to try with their settings, and the changes that cannot be applied.

    The setting that saves the least memory comes first.
    """
    settings: dict[str, list[ChangeSetting]] = {}
    not_made = []
    for change in CHANGES:
        applicable, here = change.settings_for(facts), _as_dear_as(change, facts)
        if change.world_size is not None and (request.options["world_size"] or request.is_command):
            applicable = Applicable(
                why_not="the run has several processes already, or is a command that starts several processes"
            )
        wanted = [
            ChangeSetting(change=here, setting=setting)
            for setting in applicable.settings
            if makes_a_difference(request, change, setting)
        ]
        if wanted:
            settings[change.key] = wanted
        else:
            why = applicable.why_not or "the run has this setting already"
            not_made.append(NotMade(change=change, why=why))
    return settings, not_made


# If a change may alter the gradients of this script, its cost class is at least `NUMERICS`.
def _as_dear_as(change: Change, facts: TrainingFacts) -> Change:
    is_other = change.gradients_for is not None and change.gradients_for(facts) in _OTHER
    return replace(change, cost=max(change.cost, ChangeCost.NUMERICS)) if is_other else change
