"""A change with a setting, tried alone on the script, and a combination of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ullage.changes.change import Change, ChangeCost, Gradients, text_of
from ullage.prediction.changed import changed
from ullage.prediction.prediction import Prediction
from ullage.prediction.request import Request


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

    @property
    def gradients(self) -> Gradients:
        """How the gradients compare: as those of the part that differs most."""
        order = list(Gradients)
        return max((part.change.gradients for part in self.parts), key=order.index, default=Gradients.SAME)

    def request(self, request: Request) -> Request:
        """Return the request with every change made."""
        for part in self.parts:
            request = changed(request, part.change, part.setting)
        return request

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
class Trial:
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
