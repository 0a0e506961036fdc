"""Finds the snapshots of all ranks in a folder. The rank is taken from the file name.

These names are recognized: `rank3_memory_snapshot.pickle` in `iteration_20/` (torchtitan, torchtune),
`snapshot_rank3.pickle`, `memory_snapshot-rank3.pickle`, `oom_rank-3_snapshot.pickle`, `rank_3/snapshot.pickle`,
`prof_memsnap_r3.pkl`, `snapshot_3.pickle`, `3.pickle`. Names made of a host, a process id and a time
(`host-a_Nov_24_10_00_00.pickle`, `host-a_4711.1764000000.pickle`, as the TensorBoard handlers write them) contain no
rank: each of these files counts as a separate process.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from ullage.base.errors import UsageError

_SUFFIX: Final = re.compile(r"\.(?:pickle|pkl)(?:\.gz|\.zip)?$")
_RANK: Final = re.compile(r"(?<![a-z])(?<!local_)(?<!local-)(?:global[-_]?)?ranks?[-_=.]?(\d+)", re.IGNORECASE)
# A pattern for a local rank in a file name. Local ranks are unique only within one machine, so the files of two
# machines may have the same one.
_LOCAL_RANK: Final = re.compile(r"local[-_]ranks?[-_=.]?\d", re.IGNORECASE)
_SHORT_RANK: Final = re.compile(r"(?<![a-z0-9])r[-_=]?(\d+)(?![a-z0-9])", re.IGNORECASE)
_STEP: Final = re.compile(r"(?<![a-z])(?:iteration|iter|global[-_]?step|step|epoch)[-_=]?(\d+)", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(?<!\d)\d{1,6}(?!\d)")
_MARKS_OF_A_RUN: Final = ("environment.json",)
_SUFFIX_OF_A_RUN: Final = ".live"
_MOST_DEPTH: Final = 4
MOST_FILES: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFile:
    """The snapshot file of one rank, or of a process without a known rank."""

    path: Path
    rank: int | None
    name: str
    """The name of the rank in a report, such as "rank 3". If the rank is unknown, the file's path is used."""
    size_bytes: int
    older: int = 0
    """The number of older snapshots of this rank, which are ignored."""


def rank_files(folder: Path) -> tuple[RankFile, ...]:
    """Return the latest snapshot of each rank in a folder, sorted by rank. Return nothing if there is only one rank.

    A folder that `ullage run` has written gives an empty result: it holds more than snapshots, and other code reads it.

    Raises:
        OSError: the folder cannot be read.
        UsageError: the folder has more files than a run has ranks.
    """
    found = list(_files(folder, folder, 0))
    if any(path is None for path, _, _ in found):
        return ()
    paths = [(path, size, time) for path, size, time in found if path is not None]
    ranks = _ranks([path.relative_to(folder) for path, _, _ in paths])
    by_process: defaultdict[tuple[int | None, str], list[tuple[int, float, RankFile]]] = defaultdict(list)
    for (path, size, time), rank in zip(paths, ranks, strict=True):
        below = path.relative_to(folder)
        steps = [int(number) for number in _STEP.findall(str(below))]
        who = _STEP.sub("", str(below))
        one = RankFile(path=path, rank=rank, name=_SUFFIX.sub("", str(below)), size_bytes=size)
        by_process[rank, who if rank is not None else str(below)].append((max(steps, default=-1), time, one))
    latest = [
        replace(max(files, key=lambda each: (each[0], each[1], str(each[2].path)))[2], older=len(files) - 1)
        for files in by_process.values()
    ]
    return _named(latest)


def folder_of_ranks(folder: Path) -> tuple[RankFile, ...]:
    """Return the latest snapshot of each rank in a folder. Return nothing if there are fewer than two ranks.

    Raises:
        OSError: the folder cannot be read.
    """
    files = rank_files(folder)
    return files if len(files) > 1 else ()


# Files of two machines may have the same rank. Such files get no rank.
def _named(files: Iterable[RankFile]) -> tuple[RankFile, ...]:
    files = list(files)
    count = Counter(file.rank for file in files)
    told = [
        replace(file, name=f"rank {file.rank}")
        if file.rank is not None and count[file.rank] == 1
        else replace(file, rank=None)
        for file in files
    ]
    return tuple(sorted(told, key=lambda file: (file.rank is None, file.rank or 0, file.name)))


# The path is None for a folder that `ullage run` has written.
def _files(folder: Path, top: Path, depth: int) -> Iterator[tuple[Path | None, int, float]]:
    count = 0
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            count += 1
            if count > MOST_FILES:
                raise UsageError(f"{folder} has more than {MOST_FILES:,} files; expected one snapshot for each rank")
            if entry.name in _MARKS_OF_A_RUN or entry.name.endswith(_SUFFIX_OF_A_RUN):
                yield None, 0, 0.0
            elif entry.is_dir(follow_symlinks=False):
                if depth < _MOST_DEPTH and not entry.name.startswith("."):
                    yield from _files(Path(entry.path), top, depth + 1)
            elif _SUFFIX.search(entry.name) and not entry.name.startswith(".") and entry.is_file():
                status = entry.stat()
                yield Path(entry.path), status.st_size, status.st_mtime


def _ranks(paths: list[Path]) -> list[int | None]:
    told = [_rank_by_word(path) for path in paths]
    if any(rank is not None for rank in told) or any(_LOCAL_RANK.search(str(path)) for path in paths):
        return told
    return _ranks_by_number([_SUFFIX.sub("", str(path)) for path in paths])


def _rank_by_word(path: Path) -> int | None:
    for pattern in (_RANK, _SHORT_RANK):
        for part in reversed(path.parts):  # The file name comes first, then its folders.
            if found := pattern.search(_SUFFIX.sub("", part)):
                return int(found[1])
    return None


def _ranks_by_number(names: list[str]) -> list[int | None]:
    forms = {_NUMBER.sub("#", name) for name in names}
    numbers = [[int(text) for text in _NUMBER.findall(name)] for name in names]
    if len(forms) != 1 or len(names) < 2:
        return [None] * len(names)
    varying = [place for place in range(len(numbers[0])) if len({row[place] for row in numbers}) > 1]
    if len(varying) != 1:
        return [None] * len(names)
    ranks = [row[varying[0]] for row in numbers]
    # Process ids and times differ between names, too, but they are far larger than the number of files.
    is_count = len(set(ranks)) == len(ranks) and max(ranks) < 4 * len(ranks)
    return [*ranks] if is_count else [None] * len(names)
