"""Which changes are worth a run of this script, and why the others are not."""

from dataclasses import dataclass, replace
from typing import Final

from ullage.predicting.advice.trial import ChangeSetting, NotMade
from ullage.predicting.changes.all_changes import CHANGES
from ullage.predicting.changes.change import Applicable, Change, ChangeCost, Gradients
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.prediction.changed_request import makes_a_difference
from ullage.predicting.prediction.request import Request

_OTHER: Final = frozenset({Gradients.UNKNOWN, Gradients.CHANGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The settings to try, by change, the mildest first; and what cannot be made."""

    settings: dict[str, list[ChangeSetting]]
    not_made: list[NotMade]


def candidates_of(facts: TrainingFacts, request: Request) -> Candidates:
    """Ask every change whether it can be made in a run that trains as these facts tell."""
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
    return Candidates(settings=settings, not_made=not_made)


def _as_dear_as(change: Change, facts: TrainingFacts) -> Change:
    """Return a change with what it costs in this run: no less than other numbers if the gradients may be others."""
    is_other = change.gradients_for is not None and change.gradients_for(facts) in _OTHER
    return replace(change, cost=max(change.cost, ChangeCost.NUMERICS)) if is_other else change
