"""Search for the largest batch size (or other option) with which a script fits, without and with changes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ullage.base.errors import UllageError
from ullage.predicting.advice.trial import ChangeSetting, Combination, combination, excludes
from ullage.predicting.changes.change import ChangeCost
from ullage.predicting.changes.training.facts import TrainingFacts
from ullage.predicting.fitting.axis import Axis
from ullage.predicting.fitting.fit import Fitter, Largest
from ullage.predicting.prediction.request import Request

# The search for the largest batch size leaves gradient accumulation out: every batch size fits in enough parts.
_IN_PARTS: Final = "accumulate"
_COSTS: Final = (ChangeCost.NOTHING, ChangeCost.TIME, ChangeCost.NUMERICS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestWith:
    """The largest value of an option with which the script fits, for one combination of changes."""

    combination: Combination
    """The changes that are applied. Empty for the unchanged script."""
    largest: Largest | None
    """The result of the search for the largest value that fits, or None if the changes exclude each other."""
    problem: str = ""
    """The reason why the changes cannot be combined: one sentence without a full stop."""

    @property
    def value(self) -> int | None:
        """The largest value of the option that fits, or None if no value fits."""
        best = self.largest.best if self.largest is not None else None
        return best.value if best is not None else None

    @property
    def next_value(self) -> int | None:
        """The smallest value of the option that does not fit, or None if all values fit."""
        following = self.largest.next if self.largest is not None else None
        return following.value if following is not None else None

    @property
    def to_weigh(self) -> int:
        """The smallest value that does not fit. If all values fit, this is the largest value that was run."""
        assert self.largest is not None
        return self.next_value or self.largest.probes[-1].value

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data for `json.dumps`."""
        best = self.largest.best if self.largest is not None else None
        return {
            "changes": [part.text for part in self.combination.parts],
            "name": self.combination.title,
            "cost": self.combination.cost.name.lower(),
            "best": self.value,
            "next": self.next_value,
            "interval_bytes": list(best.prediction.interval_bytes) if best is not None else None,
            "problem": self.problem,
        }


def largest_as_it_is(request: Request, axis: Axis, fitter: Fitter) -> LargestWith:
    """Search for the largest value of an option with which the unchanged script fits.

    Raises:
        ScriptError: the script fails for a reason other than memory.
    """
    found = fitter.largest(request, axis, start=axis.start_in(request.arguments))
    return LargestWith(combination=combination([]), largest=found)


def largest_by_cost(
    request: Request,
    axis: Axis,
    facts: TrainingFacts,
    useful: Sequence[ChangeSetting],
    fitter: Fitter,
    as_it_is: LargestWith,
) -> Iterator[LargestWith]:
    """Search for the largest value that fits, with all changes that cost nothing and then with more expensive ones.

    The search stops as soon as the largest value of the option fits.

    Args:
        request: the script and its GPU.
        axis: the option whose largest value is searched for.
        facts: how the script trains.
        useful: the changes that save memory, those that save most first.
        fitter: the object that runs the script with each value.
        as_it_is: the result for the unchanged script.
    """
    found = as_it_is.largest
    parts: list[ChangeSetting] = []
    for cost in _COSTS:
        if found is None or found.next is None:
            return
        before = len(parts)
        for part in useful:
            is_wanted = part.change.cost is cost and part.change.key != _IN_PARTS
            if is_wanted and not any(excludes(part, other) for other in parts):
                parts.append(part)
        if len(parts) == before:
            continue
        one = combination(parts)
        try:
            with_them = fitter.largest(one.request(request, facts), axis, start=(found.next.value,), note=one.title)
        except UllageError as error:
            why = f"the script fails with these changes together: {str(error).splitlines()[0]}"
            yield LargestWith(combination=one, largest=None, problem=why)
            continue
        found = with_them
        yield LargestWith(combination=one, largest=found)
