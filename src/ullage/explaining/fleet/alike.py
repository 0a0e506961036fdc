"""Which ranks are alike, and why one differs: groups without thresholds between neighbours, in one pass over figures.

Ranks of one group have the same end (a request that failed, growth), the same settings, workspaces of one kind of card,
peaks that follow one another without a gap of more than a hundredth, and the same lines that hold the most. A gap, and
not a width, divides them: ranks with batches of different lengths are a continuum, and one of a larger batch is not.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ullage.base.block_role import Role
from ullage.base.units import text_of_bytes
from ullage.explaining.fleet.rank_files import RankFile
from ullage.explaining.fleet.rank_summary import OTHER_LINES, RankSummary

GAP: Final = 0.01
"""The part of a peak by which neighbours of one group differ at most."""
_MOST_KINDS: Final = 16
"""The most groups of different lines that are told apart at equal peaks."""
_LINES_SHARE: Final = 0.05
"""The part of the peak by which the lines of two ranks of one group differ at most."""
_KIND_SHARE: Final = 0.05
"""The least part of all ranks that makes a group a kind of rank, and not ranks that differ."""
_WORTH: Final = 0.2
"""The least part of a difference that a line or a role must have to be named."""


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


def why_it_differs(rank: RankSummary, usual: RankSummary) -> str:
    """Return what a rank has more or less of than a usual one, and at which line."""
    said = list(_ends(rank, usual))
    if rank.cublas_bytes != usual.cublas_bytes and rank.cublas_bytes and usual.cublas_bytes:
        said.append(
            f"another kind of card: cuBLAS took {text_of_bytes(rank.cublas_bytes)} as its workspace, elsewhere "
            f"{text_of_bytes(usual.cublas_bytes)} (it is 32 MiB from Hopper on)"
        )
    if rank.settings != usual.settings:
        said.append(f"other settings of the allocator: {rank.settings or 'none'}, elsewhere {usual.settings or 'none'}")
    said += _bytes(rank, usual)
    return "; ".join(said) or "no figure tells it from the others"


def _ends(rank: RankSummary, usual: RankSummary) -> Iterator[str]:
    if rank.requested_bytes is not None and not usual.failed:
        at = f" at {rank.failing_line}" if rank.failing_line else ""
        cause = rank.cause.replace("_", " ")
        yield f"memory ran out ({cause}): {text_of_bytes(rank.requested_bytes)} were asked for{at}"
    elif usual.failed and not rank.failed:
        yield "memory did not run out"
    if rank.growth_line != usual.growth_line and rank.growth_line is not None:
        each = f"every step keeps {text_of_bytes(rank.growth_bytes)} more" if rank.growth_bytes else "blocks are kept"
        yield f"memory grows: {each}, allocated at {rank.growth_line}"


def _bytes(rank: RankSummary, usual: RankSummary) -> Iterator[str]:
    more = rank.allocated_bytes - usual.allocated_bytes
    if abs(more) > GAP * usual.allocated_bytes:
        yield f"{text_of_bytes(abs(more))} {'more' if more > 0 else 'less'} allocated{_of(rank, usual, more)}"
        return  # and what is reserved follows from that
    spare = rank.peak_reserved_bytes - rank.peak_allocated_bytes
    usual_spare = usual.peak_reserved_bytes - usual.peak_allocated_bytes
    if not rank.failed and spare - usual_spare > GAP * usual.peak_reserved_bytes:
        yield (
            f"memory in pieces: {text_of_bytes(spare)} reserved beyond the peak of what was allocated, "
            f"elsewhere {text_of_bytes(max(0, usual_spare))}"
        )
    elif spare - usual_spare < -GAP * usual.peak_reserved_bytes:
        yield f"{text_of_bytes(usual_spare - spare)} less reserved, for the same allocated"


def _of(rank: RankSummary, usual: RankSummary, more: int) -> str:
    """Return of which roles, and at which line most of it."""
    sign = 1 if more > 0 else -1
    roles = {
        role: sign * (rank.roles.get(role, 0) - usual.roles.get(role, 0))
        for role in (*rank.roles, *usual.roles)
        if role != Role.UNKNOWN.value
    }
    lines = {
        line: sign * (rank.lines.get(line, (0, 0))[0] - usual.lines.get(line, (0, 0))[0])
        for line in (*rank.lines, *usual.lines)
        if line != OTHER_LINES
    }
    role, of_role = max(roles.items(), key=lambda item: item[1], default=("", 0))
    line, of_line = max(lines.items(), key=lambda item: item[1], default=("", 0))
    said = ""
    if of_role >= _WORTH * abs(more):
        said += f", {text_of_bytes(of_role)} of it {Role(role).label}"
    if of_line >= _WORTH * abs(more):
        said += f", {text_of_bytes(of_line)} at {line}"
    return said
