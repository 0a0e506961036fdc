"""The same recipe, measured more than once on the real card: how far the card is from itself.

A prediction is one figure. Where two runs of one recipe on one card lie 2 % apart, no figure is within 1 % of both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.real_cards.case import Case, Result

COMPARED: Final = ("allocated", "reserved")


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """From the least to the most of several runs, in bytes."""

    low: int
    high: int

    @property
    def spread(self) -> float:
        """How far the runs lie apart, of the least."""
        return (self.high - self.low) / max(self.low, 1)

    @property
    def text(self) -> str:
        """For a table."""
        if self.low == self.high:
            return f"{self.low:,}"
        return f"{self.low:,} to {self.high:,} ({self.spread:.2%})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """One recipe that was measured more than once on one card."""

    recipe: str
    runs: int
    published: Mapping[str, Between]
    emulated: Mapping[str, Between]


def repeats_of(cases: Sequence[Case], results: Mapping[str, Mapping[str, Result]]) -> list[Repeats]:
    """Return the recipes of which more than one measurement was run here.

    Args:
        cases: of all sources.
        results: of every source, by the case's name.
    """
    return [
        Repeats(
            recipe=recipe,
            runs=len(some),
            published={name: _between([one.figures[name].published for one in some]) for name in COMPARED},
            emulated={name: _between([size for one in some for size in _emulated(one, name)]) for name in COMPARED},
        )
        for recipe, some in runs_of_recipes(cases, results)
    ]


def runs_of_recipes(
    cases: Sequence[Case], results: Mapping[str, Mapping[str, Result]]
) -> list[tuple[str, list[Result]]]:
    """Return each recipe of which more than one measurement on one card was run here, with the results of all."""
    ran: dict[tuple[str, str], list[Result]] = {}
    for case in cases:
        result = results[case.source].get(case.name)
        if case.is_recipe and result is not None and all(name in result.figures for name in COMPARED):
            ran.setdefault((case.what, case.card), []).append(result)
    return [(recipe, some) for (recipe, _), some in ran.items() if len(some) > 1]


def most_within(sizes: Sequence[int], apart: float) -> int:
    """Return how many of several measurements one figure can be near to at best: within a share of each.

    The best figure may as well be the least that is near enough to some measurement.
    """
    least = [size * (1 - apart) for size in sizes]
    return max(sum(size * (1 - apart) <= figure <= size * (1 + apart) for size in sizes) for figure in least)


def _between(sizes: Sequence[int]) -> Between:
    return Between(low=min(sizes), high=max(sizes))


def _emulated(result: Result, name: str) -> tuple[int, ...]:
    return (result.figures[name].emulated, *result.intervals.get(name, ()))


def section_of(repeats: Sequence[Repeats]) -> list[str]:
    """Return what the page says of them, as lines of Markdown; nothing where there are none."""
    if not repeats:
        return []
    head = ["recipe", "runs", *(f"{name}, {where}" for name in COMPARED for where in ("real GPU", "emulated GPU"))]
    apart = sum(one.published["reserved"].spread > 0.02 for one in repeats)
    return [
        "",
        "## The same recipe, measured again",
        "",
        "Some training recipes were measured several times on the same real GPU. Each cell of this table has the",
        "smallest and the largest measured figure in bytes. The difference of the two figures is in brackets.",
        f"For {apart} of {len(repeats)} recipes, the measured reserved peaks differ by more than 2 %,",
        "so no single prediction can be within 1 % of all measured peaks.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
        *(f"| {' | '.join(_cells(one))} |" for one in repeats),
    ]


def _cells(one: Repeats) -> list[str]:
    sizes = [between[name].text for name in COMPARED for between in (one.published, one.emulated)]
    return [one.recipe, str(one.runs), *sizes]
