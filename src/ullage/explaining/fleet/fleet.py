"""Explains a folder with the memory snapshots of many ranks: which ranks are similar, which differ, and why."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from ullage.base.engines.engine import WorkEngine
from ullage.base.errors import UsageError
from ullage.base.public import public
from ullage.explaining.analysis.card import card_to_explain, recorded_cards
from ullage.explaining.analysis.explain import Explanation, explain
from ullage.explaining.fleet.alike import RankFigures, RankGroup, groups_of, why_it_differs
from ullage.explaining.fleet.rank_files import RankFile
from ullage.explaining.fleet.rank_summary import RankSummary
from ullage.explaining.fleet.readers import default_workers, read_ranks, read_ranks_on
from ullage.recorded.snapshot.snapshot import load_snapshot
from ullage.report.answer import Answer

SCHEMA: Final = 1
# The largest number of different ranks that are explained one by one. If there are more, only their figures are
# reported.
_MOST_EXPLAINED: Final = 16
_TOLD_EVERY: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferentRank:
    """A rank that belongs to no large group of ranks with similar memory use."""

    figures: RankFigures
    why: str
    """A sentence on how much more or less memory this rank uses than a typical rank, and at which source line."""


@public
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FleetExplanation(Answer):
    """The result of comparing the memory snapshots of many ranks."""

    described_in: ClassVar[str] = "ullage.explaining.fleet.describe"

    folder: str
    groups: tuple[RankGroup, ...]
    """Groups of ranks with similar memory use, largest first."""
    different: tuple[DifferentRank, ...]
    """The ranks with unusual memory use. Ranks that ran out of memory come first."""
    fullest: Explanation | None
    """The explanation of the first rank that ran out of memory, or else of the rank that reserved most."""
    fullest_name: str
    unreadable: tuple[tuple[str, str], ...]
    """The ranks with unreadable snapshots, each with the reason."""
    missing: tuple[int, ...]
    """The numbers of ranks without a snapshot."""
    notes: tuple[str, ...]

    @property
    def kinds(self) -> tuple[RankGroup, ...]:
        """The large groups of ranks with similar memory use, such as all ranks of one pipeline stage."""
        return tuple(group for group in self.groups if group.is_kind)

    def to_json(self) -> dict[str, Any]:
        """Return this comparison as plain data for `json.dumps`."""
        return {
            "schema": SCHEMA,
            "folder": self.folder,
            "ranks": [
                {"rank": one.file.rank, "name": one.file.name, "file": str(one.file.path), "group": number}
                | {key: value for key, value in one.summary.to_json().items() if key != "lines"}
                for number, group in enumerate(self.groups)
                for one in group.ranks
            ],
            "groups": [
                {
                    "ranks": [one.file.name for one in group.ranks],
                    "is_kind": group.is_kind,
                    "lines": {line: size for line, (size, _) in group.middle.summary.lines.items()},
                }
                for group in self.groups
            ],
            "different": [
                {"rank": one.figures.file.rank, "name": one.figures.file.name, "why": one.why} for one in self.different
            ],
            "fullest": {"name": self.fullest_name, "explanation": self.fullest.to_json() if self.fullest else None},
            "unreadable": [{"name": name, "why": why} for name, why in self.unreadable],
            "missing": list(self.missing),
            "notes": list(self.notes),
        }


def explain_fleet(
    folder: Path,
    files: Sequence[RankFile],
    *,
    workers: int | None = None,
    engine: WorkEngine | None = None,
    with_picture: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> FleetExplanation:
    """Read the snapshots of all ranks in parallel, and find the ranks that differ.

    Args:
        folder: the folder that contains the snapshots.
        files: the snapshots, as `rank_files` has found them.
        workers: the number of processes that read at the same time; None: one for each core.
        engine: the execution engine whose workers read the files; None: this machine reads them.
        with_picture: whether an HTML page will draw the memory of the fullest rank.
        progress: called with a short text from time to time.

    Raises:
        UsageError: none of the snapshots can be read.
    """

    def read(some: Sequence[RankFile], *, is_whole: bool, done: Callable[[int], None]) -> dict[str, RankSummary | str]:
        if engine is not None:
            return read_ranks_on(engine, some, is_whole=is_whole, done=done)
        return read_ranks(some, workers=workers or default_workers(), is_whole=is_whole, done=done)

    def tell(number: int) -> None:
        if number % _TOLD_EVERY == 0 or number == len(files):
            progress(f"{number:,} of {len(files):,} ranks read")

    answers = read(files, is_whole=False, done=tell)
    ranks, unreadable = [], []
    for file in files:
        answer = answers[str(file.path)]
        if isinstance(answer, RankSummary):
            ranks.append(RankFigures(file=file, summary=answer))
        else:
            unreadable.append((file.name, answer))
    if not ranks:
        raise UsageError(f"no snapshot in {folder} can be read; for example, {unreadable[0][0]}: {unreadable[0][1]}")
    groups = groups_of(ranks)
    different = _different(groups, read, progress)
    fullest = max(ranks, key=_fullness)
    progress(f"explaining {fullest.file.name}, the rank with the most memory")
    return FleetExplanation(
        folder=str(folder),
        groups=groups,
        different=different,
        fullest=_explanation_of(fullest, with_picture=with_picture),
        fullest_name=fullest.file.name,
        unreadable=tuple(unreadable),
        missing=_missing(files),
        notes=tuple(_notes(files)),
    )


def file_of_rank(folder: Path, files: Sequence[RankFile], rank: int) -> Path:
    """Return the snapshot file of one rank.

    Raises:
        UsageError: the folder has no snapshot of this rank.
    """
    found = next((file.path for file in files if file.rank == rank), None)
    if found is None:
        known = [file.rank for file in files if file.rank is not None]
        there = (
            f"expected a rank from {min(known)} to {max(known)}" if known else "the file names contain no rank numbers"
        )
        raise UsageError(f"{folder} has no snapshot of rank {rank}; {there}")
    return found


def engine_of(on: str | None, workers: int | None) -> AbstractContextManager[WorkEngine | None]:
    """Return the named execution engine, or None to run on this machine.

    Raises:
        UsageError: the engine does not exist, or a package that it needs is not installed.
        EngineError: the engine does not respond.
    """
    if on in (None, "local"):
        return nullcontext()
    from ullage.base.engines.chosen import open_engine

    return open_engine(on, workers=workers)


def _fullness(rank: RankFigures) -> tuple[bool, int]:
    return rank.summary.failed, rank.summary.peak_reserved_bytes


def _different(
    groups: Sequence[RankGroup], read: Callable[..., dict[str, RankSummary | str]], progress: Callable[[str], None]
) -> tuple[DifferentRank, ...]:
    kinds = [group for group in groups if group.is_kind] or list(groups[:1])
    odd = [one for group in groups if group not in kinds for one in group.ranks]
    odd.sort(key=_fullness, reverse=True)
    if 0 < len(odd) <= _MOST_EXPLAINED:
        progress(f"explaining the {len(odd)} ranks that differ")
        explained = read([one.file for one in odd], is_whole=True, done=lambda number: None)
        told = [explained[str(one.file.path)] for one in odd]
        odd = [
            RankFigures(file=one.file, summary=summary) if isinstance(summary, RankSummary) else one
            for one, summary in zip(odd, told, strict=True)
        ]
    return tuple(DifferentRank(figures=one, why=why_it_differs(one.summary, _usual(one, kinds))) for one in odd)


def _usual(rank: RankFigures, kinds: Sequence[RankGroup]) -> RankSummary:
    def distance(group: RankGroup) -> int:
        return abs(group.middle.summary.peak_allocated_bytes - rank.summary.peak_allocated_bytes)

    return min(kinds, key=distance).middle.summary


def _explanation_of(rank: RankFigures, *, with_picture: bool) -> Explanation:
    snapshot = load_snapshot(rank.file.path)
    device = card_to_explain(recorded_cards(snapshot.devices))
    return explain(snapshot.devices[device], source=f"{rank.file.path}", with_picture=with_picture)


def _missing(files: Sequence[RankFile]) -> tuple[int, ...]:
    ranks = {file.rank for file in files if file.rank is not None}
    return tuple(sorted(set(range(max(ranks) + 1)) - ranks)) if ranks else ()


def _notes(files: Sequence[RankFile]) -> Iterator[str]:
    older = sum(file.older for file in files)
    if older:
        yield f"only the latest snapshot of each rank was read; {older:,} snapshots of earlier steps were skipped"
    nameless = sum(1 for file in files if file.rank is None)
    if nameless:
        yield (
            f"{nameless:,} file names contain no rank, or the same rank as another file; these files are listed by name"
        )
