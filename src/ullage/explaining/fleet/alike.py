"""Which ranks are alike: groups without thresholds between neighbours, found in one pass over the sorted figures.

Ranks of one group have the same end (a request that failed, growth), the same settings, workspaces of one kind of card,
peaks that follow one another without a gap of more than a hundredth, and the same lines that hold the most. A gap, and
not a width, divides them: ranks with batches of different lengths are a continuum, and one of a larger batch is not.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ullage.explaining.fleet.rank_files import RankFile
from ullage.explaining.fleet.rank_summary import RankSummary

GAP: Final = 0.01
"""The part of a peak by which neighbours of one group differ at most."""
_MOST_KINDS: Final = 16
"""The most groups of different lines that are told apart at equal peaks."""
_LINES_SHARE: Final = 0.05
"""The part of the peak by which the lines of two ranks of one group differ at most."""
_KIND_SHARE: Final = 0.05
"""The least part of all ranks that makes a group a kind of rank, and not ranks that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """A rank, and its snapshot's figures."""

    file: RankFile
    summary: RankSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Ranks that are alike, the fullest first."""

    ranks: tuple[RankFigures, ...]
    is_kind: bool
    """Whether there are enough of them to be a kind of rank, such as a pipeline's stage; else they differ."""

    @property
    def fullest(self) -> RankFigures:
        """The rank that reserved most."""
        return self.ranks[0]

    @property
    def middle(self) -> RankFigures:
        """The rank that others are compared with: as many reserved more as less."""
        return self.ranks[len(self.ranks) // 2]


def groups_of(ranks: Iterable[RankFigures]) -> tuple[RankGroup, ...]:
    """Return groups of ranks that are alike, the largest first."""
    ranks = list(ranks)
    found: list[list[RankFigures]] = []
    by_end: defaultdict[Hashable, list[RankFigures]] = defaultdict(list)
    for one in ranks:
        by_end[_end_of(one.summary)].append(one)
    for same in by_end.values():
        for near in _divided(same, lambda one: one.summary.peak_allocated_bytes):
            for nearer in _divided(near, lambda one: one.summary.peak_reserved_bytes):
                found += _by_lines(nearer)
    least = max(2.0, _KIND_SHARE * len(ranks))
    most = max(map(len, found), default=0)
    groups = (
        RankGroup(
            ranks=tuple(sorted(group, key=lambda one: -one.summary.peak_reserved_bytes)),
            is_kind=len(group) >= least or (len(group) == most and len(found) == 1),
        )
        for group in found
    )
    return tuple(sorted(groups, key=lambda group: (-len(group.ranks), -group.fullest.summary.peak_reserved_bytes)))


def _end_of(summary: RankSummary) -> Hashable:
    """Return what is the same for all ranks of a group, and is no figure that varies."""
    return (
        summary.failed,
        summary.cause,
        summary.growth_line,
        summary.settings,
        summary.cublas_bytes,
    )


def _divided(ranks: Sequence[RankFigures], figure: Callable[[RankFigures], int]) -> list[list[RankFigures]]:
    """Divide ranks where the sorted figures leave a gap."""
    groups: list[list[RankFigures]] = []
    before = 0
    for one in sorted(ranks, key=figure):
        value = figure(one)
        if not groups or value - before > GAP * value:
            groups.append([])
        groups[-1].append(one)
        before = value
    return groups


def _by_lines(ranks: Sequence[RankFigures]) -> list[list[RankFigures]]:
    """Divide ranks by the lines that hold memory: those of different stages may have equal peaks."""
    groups: list[list[RankFigures]] = []
    for one in ranks:
        own = next((group for group in groups if _have_same_lines(group[0].summary, one.summary)), None)
        if own is None and len(groups) == _MOST_KINDS:
            own = groups[-1]
        if own is None:
            groups.append([one])
        else:
            own.append(one)
    return groups


def _have_same_lines(first: RankSummary, second: RankSummary) -> bool:
    lines = first.lines.keys() | second.lines.keys()
    differs = sum(abs(first.lines.get(line, (0, 0))[0] - second.lines.get(line, (0, 0))[0]) for line in lines)
    return differs <= 2 * _LINES_SHARE * max(first.allocated_bytes, second.allocated_bytes, 1)
