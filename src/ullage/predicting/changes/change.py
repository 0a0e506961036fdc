"""What every change declares: its cost, when it applies, how it is made from outside, how it is written by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.edit import Recipe

if TYPE_CHECKING:
    from ullage.predicting.changes.training.training_loop import TrainingLoop


class ChangeCost(IntEnum):
    """What a change costs, the cheapest first."""

    NOTHING = 0
    """The same numbers, no more time to speak of."""
    TIME = 1
    """The same gradients, more time."""
    NUMERICS = 2
    """Other numbers."""
    CARDS = 3
    """More cards."""


class Gradients(StrEnum):
    """How the gradients of a changed run compare with the unchanged one's."""

    SAME = "the same"
    ROUNDING = "the same up to rounding"
    COUNTS = "the same up to rounding if no target is ignored"
    MORE_ITEMS = "the mean over the batches of all cards"
    UNKNOWN = "not known to be the same"
    CHANGED = "not the same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicable:
    """The settings of a change that are worth a run, the mildest first; or why there is none."""

    settings: Sequence[str] = ()
    why_not: str = ""
    """One sentence without a full stop: why the change cannot be made in this run."""

    @classmethod
    def unless(cls, *reasons: tuple[object, str], settings: Sequence[str] = ("on",)) -> "Applicable":
        """Return settings, or the first reason against them whose condition holds."""
        why_not = next((why for holds, why in reasons if holds), "")
        return cls(why_not=why_not) if why_not else cls(settings=settings)


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change that is made in the script's process, right after torch is imported."""

    loop: "TrainingLoop"
    text: str
    """The words by which the request names it: `key=setting`."""
    setting: str

    def took_effect(self, times: int = 1) -> None:
        """Count what the change did."""
        self.loop.effects[self.text] += times

    def refuse(self, why: str) -> None:
        """Say why the change is not made; what was said first counts."""
        self.loop.refusals.setdefault(self.text, why)

    def fail(self, why: str) -> None:
        """Say why the change is not made; what was said last counts."""
        self.loop.refusals[self.text] = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change to a training run that needs no edit of the script."""

    key: str
    """The word by which a request names the change: `key=setting`."""
    name: str
    """The name for people; a setting may be put behind it."""
    cost: ChangeCost
    gradients: Gradients
    title_for: Callable[[str], str] | None = None
    """Returns the name for people with a setting; None: `name` says it all."""
    explanation: str
    """One sentence: what it does, and what that saves."""
    settings_for: Callable[[TrainingFacts], Applicable]
    """Returns what is worth a run."""
    install: Callable[[AppliedChange], object] | None = None
    """Makes the change in the script's process; None where a variable of the environment or an argument makes it."""
    alloc_conf: Callable[[str], str] | None = None
    """Returns the allocator's options that make the change, for a setting."""
    is_edit: Callable[[TrainingFacts, str], bool] | None = None
    """Tells whether the change is made by running the recipe's edits in place of the files (`Request.edited`)."""
    gradients_for: Callable[[TrainingFacts], Gradients] | None = None
    """Returns how the gradients compare in a run, where that depends on the run; else `gradients` says it."""
    added_flops: Callable[[TrainingFacts, str], int] | None = None
    """Returns the floating-point operations that it adds to a step, for a setting; None: it adds none."""
    world_size: Callable[[str], int] | None = None
    """Returns the number of cards that it needs, for a setting; None: those that the run has."""
    excludes: frozenset[str] = frozenset()
    """The keys of changes that cannot be made beside it."""
    recipe_for: Callable[[TrainingFacts, str], Recipe]
    """Returns how it is written by hand: edits of the user's files where they are certain, else a text."""

    def title(self, setting: str) -> str:
        """Return the name of the change with a setting."""
        return self.name if self.title_for is None else self.title_for(setting)


def text_of(change: Change, setting: str) -> str:
    """Return how a request names a change."""
    return f"{change.key}={setting}"
