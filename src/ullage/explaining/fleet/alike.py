"""Divides ranks into groups with similar memory use, and explains why a rank differs from them.

The ranks of a group have the same outcome (a request failed, or memory grows), the same allocator settings, cuBLAS
workspaces of the same GPU generation, and the same source lines that hold the most memory. When their peaks are sorted,
two neighboring peaks differ by at most 1 %. Gaps divide ranks into groups; the width of a group does not matter. So
ranks with batches of different lengths form one group, and a rank with a much larger batch does not belong to it.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ullage.base.block_role import Role
from ullage.base.units import text_of_bytes
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.fleet.rank_files import RankFile
from ullage.explaining.fleet.rank_summary import OTHER_LINES, RankSummary

GAP: Final = 0.01
"""The largest relative difference between two neighboring peaks in one group of ranks. All peaks are sorted first."""
# The largest number of groups into which ranks with equal peaks are divided. They are divided if different source lines
# hold their memory.
_MOST_KINDS: Final = 16
# The largest difference in memory, summed over source lines, between two ranks of one group. It is a fraction of the
# allocated memory.
_LINES_SHARE: Final = 0.05
# A fraction of all ranks. A group counts as usual if it has at least this fraction. The ranks of smaller groups are
# reported as different.
_KIND_SHARE: Final = 0.05
# A fraction of a difference in memory. A report names a source line or a role only if it causes at least this fraction.
_WORTH: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """A rank's snapshot file and its memory figures."""

    file: RankFile
    summary: RankSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """A group of ranks with similar memory use. The rank with the most reserved memory comes first."""

    ranks: tuple[RankFigures, ...]
    is_kind: bool
    """Whether the group of ranks is large. ullage reports a rank as unusual if it is in no large group."""

    @property
    def fullest(self) -> RankFigures:
        """The rank of this group that reserved the most memory."""
        return self.ranks[0]

    @property
    def middle(self) -> RankFigures:
        """The rank with the median reserved memory, which represents the group."""
        return self.ranks[len(self.ranks) // 2]


def groups_of(ranks: Iterable[RankFigures]) -> tuple[RankGroup, ...]:
    """Divide ranks into groups with similar memory use. The largest group comes first."""
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
    return (
        summary.failed,
        summary.cause,
        summary.growth_line,
        summary.settings,
        summary.cublas_bytes,
    )


def _divided(ranks: Sequence[RankFigures], figure: Callable[[RankFigures], int]) -> list[list[RankFigures]]:
    groups: list[list[RankFigures]] = []
    before = 0
    for one in sorted(ranks, key=figure):
        value = figure(one)
        if not groups or value - before > GAP * value:
            groups.append([])
        groups[-1].append(one)
        before = value
    return groups


# This separates the ranks of different pipeline stages, which may have equal peaks.
def _by_lines(ranks: Sequence[RankFigures]) -> list[list[RankFigures]]:
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
    """Return how much more or less memory a rank uses than a typical rank, and the source line responsible."""
    said = list(_ends(rank, usual))
    if rank.cublas_bytes != usual.cublas_bytes and rank.cublas_bytes and usual.cublas_bytes:
        said.append(
            f"a different GPU model: the cuBLAS workspace has {text_of_bytes(rank.cublas_bytes)}, on other ranks "
            f"{text_of_bytes(usual.cublas_bytes)} (32 MiB since Hopper)"
        )
    if rank.settings != usual.settings:
        said.append(
            f"different allocator settings: {rank.settings or 'none'}, on other ranks {usual.settings or 'none'}"
        )
    said += _bytes(rank, usual)
    return "; ".join(said) or "no figure distinguishes it from the other ranks"


def _ends(rank: RankSummary, usual: RankSummary) -> Iterator[str]:
    if rank.requested_bytes is not None and not usual.failed:
        at = f" at {rank.failing_line}" if rank.failing_line else ""
        cause = Cause(rank.cause).phrase
        yield f"out of memory ({cause}): a request of {text_of_bytes(rank.requested_bytes)} failed{at}"
    elif usual.failed and not rank.failed:
        yield "did not run out of memory"
    if rank.growth_line != usual.growth_line and rank.growth_line is not None:
        each = (
            f"every step keeps {text_of_bytes(rank.growth_bytes)} more" if rank.growth_bytes else "blocks are not freed"
        )
        yield f"memory grows: {each}, allocated at {rank.growth_line}"


def _bytes(rank: RankSummary, usual: RankSummary) -> Iterator[str]:
    more = rank.allocated_bytes - usual.allocated_bytes
    if abs(more) > GAP * usual.allocated_bytes:
        yield f"{text_of_bytes(abs(more))} {'more' if more > 0 else 'less'} allocated{_of(rank, usual, more)}"
        return  # The reserved memory follows from the allocated memory.
    spare = rank.peak_reserved_bytes - rank.peak_allocated_bytes
    usual_spare = usual.peak_reserved_bytes - usual.peak_allocated_bytes
    if not rank.failed and spare - usual_spare > GAP * usual.peak_reserved_bytes:
        yield (
            f"fragmentation: the peak of reserved memory is {text_of_bytes(spare)} above the peak of allocated memory, "
            f"on other ranks {text_of_bytes(max(0, usual_spare))}"
        )
    elif spare - usual_spare < -GAP * usual.peak_reserved_bytes:
        yield f"{text_of_bytes(usual_spare - spare)} less reserved for the same allocated memory"


def _of(rank: RankSummary, usual: RankSummary, more: int) -> str:
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
