"""Describe a change to a training run: what it costs, when it can be applied, and how."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.editing.edit import Recipe

if TYPE_CHECKING:
    from ullage.predicting.changes.training.training_loop import TrainingLoop


class ChangeCost(IntEnum):
    """What a change costs the user: nothing, time, numerical differences or more GPUs."""

    NOTHING = 0
    """The change keeps the training results. A training step takes about as long as without the change."""
    TIME = 1
    """The gradients are the same, but a step takes more time."""
    NUMERICS = 2
    """The results differ numerically."""
    CARDS = 3
    """The script needs more GPUs."""


class Gradients(StrEnum):
    """How the gradients of a changed run compare with those of the unchanged run."""

    SAME = "the same"
    ROUNDING = "the same up to rounding"
    COUNTS = "the same up to rounding if no target is ignored"
    MORE_ITEMS = "the mean over the batches of all GPUs"
    UNKNOWN = "not known to be the same"
    CHANGED = "not the same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicable:
    """The settings with which to try a change. The setting that saves the least memory comes first.

    If the change cannot be applied, `settings` is empty, and `why_not` has the reason.
    """

    settings: Sequence[str] = ()
    why_not: str = ""
    """Why the change cannot be applied to this run: one sentence without a full stop."""

    @classmethod
    def unless(cls, *reasons: tuple[object, str], settings: Sequence[str] = ("on",)) -> "Applicable":
        """Return the settings to try, or the reason why the change cannot be applied."""
        why_not = next((why for holds, why in reasons if holds), "")
        return cls(why_not=why_not) if why_not else cls(settings=settings)


@dataclass(frozen=True, slots=True)
class AppliedChange:
    """A change that is applied in the script's process, right after torch is imported."""

    loop: "TrainingLoop"
    text: str
    """The change and its setting, as `key=setting`."""
    setting: str

    def took_effect(self, times: int = 1) -> None:
        """Record that this change had an effect on the run."""
        self.loop.effects[self.text] += times

    def refuse(self, why: str) -> None:
        """Record why the change is not applied, unless a reason is already recorded."""
        self.loop.refusals.setdefault(self.text, why)

    def fail(self, why: str) -> None:
        """Record why the change is not applied, and replace any earlier reason."""
        self.loop.refusals[self.text] = why


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change to a training run that needs no edit of the script."""

    key: str
    """A short name of the change for options and results, such as "checkpoint"."""
    name: str
    """The name of the change in reports, without its setting."""
    cost: ChangeCost
    gradients: Gradients
    title_for: Callable[[str], str] | None = None
    """A function that takes a setting and returns the name of the change in reports. None: reports show `name`."""
    explanation: str
    """A sentence for the user that says what the change does and why it saves memory."""
    settings_for: Callable[[TrainingFacts], Applicable]
    """A function that takes facts about training and returns the settings to try."""
    install: Callable[[AppliedChange], object] | None = None
    """A function that applies the change in the script's process.

    None if an environment variable or a script argument applies it.
    """
    alloc_conf: Callable[[str], str] | None = None
    """A function that takes a setting and returns the `PYTORCH_CUDA_ALLOC_CONF` options for it."""
    is_edit: Callable[[TrainingFacts, str], bool] | None = None
    """A function that returns whether edited copies of the user's files apply the change."""
    gradients_for: Callable[[TrainingFacts], Gradients] | None = None
    """A function that returns how the gradients compare with the gradients of the unchanged run.

    The function is None if the answer is the same for every run. Then `gradients` has the answer.
    """
    added_flops: Callable[[TrainingFacts, str], int] | None = None
    """A function that returns the floating-point operations that the change adds to a step, or None for zero."""
    remark_for: Callable[[TrainingFacts], str] | None = None
    """A function that returns what else the user should know about the change in this run: sentences, or an empty text.

    None if nothing is to be said for any run.
    """
    world_size: Callable[[str], int] | None = None
    """A function that returns how many GPUs a setting needs. None if the change needs no additional GPUs."""
    excludes: frozenset[str] = frozenset()
    """The keys of the changes that cannot be combined with this change."""
    recipe_for: Callable[[TrainingFacts, str], Recipe]
    """A function that returns the change as edits of the user's files.

    If the place for the edits is uncertain, it returns example code only.
    """

    def title(self, setting: str) -> str:
        """Return the name of the change in reports, including its setting."""
        return self.name if self.title_for is None else self.title_for(setting)


def text_of(change: Change, setting: str) -> str:
    """Return `key=setting` for a change and its setting."""
    return f"{change.key}={setting}"
