"""The class for a change: its cost, the conditions for it, its hooks, and its source code."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.edit import Recipe

if TYPE_CHECKING:
    from ullage.predicting.changes.training.training_loop import TrainingLoop


class ChangeCost(IntEnum):
    """The cost class of a change. The cheapest class is first."""

    NOTHING = 0
    """The results are the same, and a step takes no noticeable extra time."""
    TIME = 1
    """Same gradients, but more time per step."""
    NUMERICS = 2
    """Results differ numerically."""
    CARDS = 3
    """More GPUs are needed."""


class Gradients(StrEnum):
    """A comparison of the gradients of a changed run with those of the unchanged run."""

    SAME = "the same"
    ROUNDING = "the same up to rounding"
    COUNTS = "the same up to rounding if no target is ignored"
    MORE_ITEMS = "the mean over the batches of all GPUs"
    UNKNOWN = "not known to be the same"
    CHANGED = "not the same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicable:
    """The settings of a change that are worth a run. The first one saves the least. If the change cannot be applied,
    this holds the reason instead.
    """

    settings: Sequence[str] = ()
    why_not: str = ""
    """Why the change cannot be applied to this run: one sentence without a full stop."""

    @classmethod
    def unless(cls, *reasons: tuple[object, str], settings: Sequence[str] = ("on",)) -> "Applicable":
        """Return the settings of a change. If one of the conditions is true, return the reason for which the change
        cannot be applied.
        """
        why_not = next((why for holds, why in reasons if holds), "")
        return cls(why_not=why_not) if why_not else cls(settings=settings)


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change that hooks apply in the script's process, right after the import of torch."""

    loop: "TrainingLoop"
    text: str
    """The change and its setting as text: `key=setting`."""
    setting: str

    def took_effect(self, times: int = 1) -> None:
        """Count how many times this change had an effect on the run."""
        self.loop.effects[self.text] += times

    def refuse(self, why: str) -> None:
        """Record why the change is not applied. If there is already a reason, keep it."""
        self.loop.refusals.setdefault(self.text, why)

    def fail(self, why: str) -> None:
        """Record why the change is not applied. If there is already a reason, replace it."""
        self.loop.refusals[self.text] = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change to a training run that needs no edit of the script."""

    key: str
    """The key of the change, such as "checkpoint". The text `key=setting` names a change and its setting."""
    name: str
    """The name of the change in reports, without its setting."""
    cost: ChangeCost
    gradients: Gradients
    title_for: Callable[[str], str] | None = None
    """A function that returns the name of a change and its setting for reports. If None, reports show `name` for every
    setting.
    """
    explanation: str
    """A sentence for the user. It says what the change does and why that saves memory."""
    settings_for: Callable[[TrainingFacts], Applicable]
    """A function that takes the facts about training and returns the settings that are worth a run."""
    install: Callable[[AppliedChange], object] | None = None
    """A function that applies the change in the script's process. None if an environment variable or an argument
    applies it.
    """
    alloc_conf: Callable[[str], str] | None = None
    """A function that takes a setting and returns the options of PyTorch's allocator that apply it."""
    is_edit: Callable[[TrainingFacts, str], bool] | None = None
    """A function that returns whether the change is applied by edited source code, which runs in place of the user's
    files (`Request.edited`).
    """
    gradients_for: Callable[[TrainingFacts], Gradients] | None = None
    """A function that returns how the gradients compare with those of the unchanged run. None if the comparison is the
    same for every run.
    """
    added_flops: Callable[[TrainingFacts, str], int] | None = None
    """A function that returns how many floating-point operations the change adds to a step. None if the change adds
    none.
    """
    world_size: Callable[[str], int] | None = None
    """A function that takes a setting and returns the number of GPUs that it needs. None if the number of GPUs stays
    the same.
    """
    excludes: frozenset[str] = frozenset()
    """The keys of the changes that cannot be combined with this change."""
    recipe_for: Callable[[TrainingFacts, str], Recipe]
    """A function that returns the change as source code. It returns edits of the user's files, or only a snippet if
    their places are uncertain.
    """

    def title(self, setting: str) -> str:
        """Return the name of a change and its setting for reports."""
        return self.name if self.title_for is None else self.title_for(setting)


def text_of(change: Change, setting: str) -> str:
    """Return the text `key=setting` for a change and its setting."""
    return f"{change.key}={setting}"
