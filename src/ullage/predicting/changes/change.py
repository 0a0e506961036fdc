"""The declaration of a change: its cost, when it applies, how it is applied by hooks, how it is written by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.edit import Recipe

if TYPE_CHECKING:
    from ullage.predicting.changes.training.training_loop import TrainingLoop


class ChangeCost(IntEnum):
    """The cost class of a change, the cheapest first."""

    NOTHING = 0
    """Same results, and no noticeable additional time."""
    TIME = 1
    """Same gradients, but more time per step."""
    NUMERICS = 2
    """Results differ numerically."""
    CARDS = 3
    """More GPUs are needed."""


class Gradients(StrEnum):
    """The comparison of a changed run's gradients with those of the unchanged run."""

    SAME = "the same"
    ROUNDING = "the same up to rounding"
    COUNTS = "the same up to rounding if no target is ignored"
    MORE_ITEMS = "the mean over the batches of all GPUs"
    UNKNOWN = "not known to be the same"
    CHANGED = "not the same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicable:
    """The settings of a change that are worth a run, the mildest first, or the reason why it cannot be applied."""

    settings: Sequence[str] = ()
    why_not: str = ""
    """The reason why the change cannot be applied to this run: one sentence without a full stop."""

    @classmethod
    def unless(cls, *reasons: tuple[object, str], settings: Sequence[str] = ("on",)) -> "Applicable":
        """Return the settings, or, if a condition holds, the reason that belongs to the first such condition."""
        why_not = next((why for holds, why in reasons if holds), "")
        return cls(why_not=why_not) if why_not else cls(settings=settings)


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change that is applied in the script's process, right after torch is imported."""

    loop: "TrainingLoop"
    text: str
    """The change and its setting in a request's form: `key=setting`."""
    setting: str

    def took_effect(self, times: int = 1) -> None:
        """Count how often the change had an effect."""
        self.loop.effects[self.text] += times

    def refuse(self, why: str) -> None:
        """Record the reason why the change is not applied. An earlier reason is kept."""
        self.loop.refusals.setdefault(self.text, why)

    def fail(self, why: str) -> None:
        """Record the reason why the change is not applied. An earlier reason is replaced."""
        self.loop.refusals[self.text] = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change to a training run that can be applied without editing the script."""

    key: str
    """The key by which a request names the change: `key=setting`."""
    name: str
    """The name of the change in reports, without a setting."""
    cost: ChangeCost
    gradients: Gradients
    title_for: Callable[[str], str] | None = None
    """Returns the name in reports for a setting. If None, `name` is used for every setting."""
    explanation: str
    """A sentence for the user: what the change does, and why that saves memory."""
    settings_for: Callable[[TrainingFacts], Applicable]
    """Returns the settings that are worth a run, from the facts about training."""
    install: Callable[[AppliedChange], object] | None = None
    """Applies the change in the script's process. None if an environment variable or an argument applies it."""
    alloc_conf: Callable[[str], str] | None = None
    """Returns the allocator options that apply the change with a setting."""
    is_edit: Callable[[TrainingFacts, str], bool] | None = None
    """Returns whether the change is applied by running edited source code in place of the files (`Request.edited`)."""
    gradients_for: Callable[[TrainingFacts], Gradients] | None = None
    """Returns how the gradients compare, for changes in which that depends on the run. None if it does not."""
    added_flops: Callable[[TrainingFacts, str], int] | None = None
    """Returns the floating-point operations that the change adds to a step; None if it adds none."""
    world_size: Callable[[str], int] | None = None
    """Returns the number of GPUs that the change needs with a setting; None if it keeps their number."""
    excludes: frozenset[str] = frozenset()
    """The keys of changes that cannot be combined with this change."""
    recipe_for: Callable[[TrainingFacts, str], Recipe]
    """Returns the source code of the change: edits if their places are certain, otherwise a snippet."""

    def title(self, setting: str) -> str:
        """Return the name of the change with a setting, as reports show it."""
        return self.name if self.title_for is None else self.title_for(setting)


def text_of(change: Change, setting: str) -> str:
    """Return a change and its setting in a request's form, `key=setting`."""
    return f"{change.key}={setting}"
