"""Which changes are worth a run of this script, and why the others are not."""

from dataclasses import dataclass

from ullage.advice.trial import ChangeSetting, NotMade
from ullage.changes.all_changes import CHANGES
from ullage.changes.change import Applicable
from ullage.changes.facts import TrainingFacts
from ullage.prediction.changed import makes_a_difference
from ullage.prediction.request import Request


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
        applicable = change.settings_for(facts)
        if change.world_size is not None and (request.world_size or request.is_command):
            applicable = Applicable(why_not="the run has several processes already, or is a command that starts them")
        wanted = [
            ChangeSetting(change=change, setting=setting)
            for setting in applicable.settings
            if makes_a_difference(request, change, setting)
        ]
        if wanted:
            settings[change.key] = wanted
        else:
            why = applicable.why_not or "the run has it already"
            not_made.append(NotMade(change=change, why=why))
    return Candidates(settings=settings, not_made=not_made)
