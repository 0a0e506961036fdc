"""Reads the folder of a run. It contains a file for each process and a folder for each out-of-memory error."""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from ullage.base.errors import UsageError
from ullage.base.foreign_files import read_regular
from ullage.running.run_files.facts import RunCard, RunFacts, RunPeak
from ullage.running.run_files.live import LIVE_BYTES, SUFFIX, Live, LiveFileError, Sample, read_live

T = TypeVar("T")

SNAPSHOT: Final = "snapshot.pickle"
ENVIRONMENT: Final = "environment.json"
REPORT: Final = "report.txt"
PAGE: Final = "report.html"
"""The name of the HTML report in the folder of an out-of-memory error."""
_MOST_JSON_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class RunProcess:
    """One process of a run."""

    live: Live
    facts: RunFacts

    @property
    def name(self) -> str:
        """The name of the process in reports: "rank 3", or "process 4711" if it has no rank."""
        return f"process {self.facts.pid}" if self.facts.rank is None else f"rank {self.facts.rank}"

    @property
    def told_steps(self) -> int:
        """The number of training steps that the process had completed when it last updated its file."""
        return RunFacts.from_json(self.live.facts).steps

    @property
    def peak_bytes(self) -> int:
        """The highest peak of allocated memory on any device of this process, in bytes."""
        return max((peak.bytes for peak in self.facts.peaks), default=0)


@dataclass(frozen=True, slots=True)
class OomEvidence:
    """The folder that a process wrote when it ran out of memory."""

    folder: Path
    surroundings: dict[str, Any]

    @property
    def snapshot(self) -> Path | None:
        """The path of the memory snapshot. None if the snapshot is incomplete."""
        path = self.folder / SNAPSHOT
        return path if path.is_file() else None

    @property
    def time(self) -> float:
        """The time of the out-of-memory error, in seconds since 1970. It is 0 if the time is unknown."""
        return self._told("time", float, int) or 0.0

    @property
    def pid(self) -> int | None:
        """The process ID. None if it is unknown."""
        facts = self._told("facts", dict) or {}
        pid = facts.get("pid")
        return pid if isinstance(pid, int) else None

    @property
    def device(self) -> int | None:
        """The index of the device that ran out of memory. None if it is unknown."""
        return self._told("device", int)

    @property
    def torch(self) -> str | None:
        """The version of torch in the process. None if it is unknown."""
        return self._told("torch", str)

    @property
    def step(self) -> int | None:
        """The training step in which memory ran out. The first step is 1. None if it is unknown."""
        return self._told("step", int)

    @property
    def line(self) -> str | None:
        """The line of the user's code that requested the memory, such as "train.py:33". None if it is unknown."""
        return self._told("line", str)

    @property
    def is_in_backward(self) -> bool:
        """Whether memory ran out in `backward`. The attribute `line` is then the line that called `backward`."""
        return self._told("is_in_backward", bool) or False

    @property
    def variables(self) -> dict[str, str]:
        """The recorded environment variables that affect memory."""
        told = self._told("variables", dict) or {}
        return {name: value for name, value in told.items() if isinstance(value, str)}

    def _told(self, name: str, *kinds: type[T]) -> T | None:
        value = self.surroundings.get(name)
        return cast(T, value) if type(value) in kinds else None


@dataclass(frozen=True, slots=True)
class RunFolder:
    """All files that a run has written."""

    folder: Path
    processes: tuple[RunProcess, ...]
    """The processes that have used a GPU, sorted by rank."""
    evidence: tuple[OomEvidence, ...]
    """The folders of out-of-memory errors, oldest first."""


def read_run(folder: Path) -> RunFolder:
    """Read the folder of a run, or of one of its out-of-memory errors. Skip incomplete files.

    Raises:
        UsageError: the folder is not that of a run.
        OSError: the folder cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; expected a folder that `ullage run` has written")
    if _is_evidence(folder):
        run = read_run(folder.absolute().parent)
        return replace(run, evidence=tuple(one for one in run.evidence if one.folder.name == folder.absolute().name))
    processes, evidence = [], []
    for path in sorted(folder.iterdir()):
        if path.suffix == SUFFIX and path.is_file():
            try:
                live = read_live(path)
            except (LiveFileError, OSError):  # a file of another program or another user
                continue
            processes.append(RunProcess(live, facts_of(live)))
        elif _is_evidence(path):
            evidence.append(OomEvidence(path, _json_of(path / ENVIRONMENT)))
    if not processes and not evidence:
        raise UsageError(
            f"{folder} has neither a {SUFFIX} file nor evidence in it; expected a folder that `ullage run` has written"
        )
    processes.sort(key=lambda process: (process.facts.rank is None, process.facts.rank or 0, process.facts.started))
    evidence.sort(key=lambda one: one.time)
    return RunFolder(folder, tuple(processes), tuple(evidence))


def is_run(folder: Path) -> bool:
    """Return whether a folder looks like the folder of a run, judged by file names and sizes."""
    with os.scandir(folder) as entries:
        return any(
            (entry.is_file() and entry.stat().st_size == LIVE_BYTES)
            if entry.name.endswith(SUFFIX)
            else entry.is_dir() and _is_evidence(Path(entry.path))
            for entry in entries
        )


def facts_of(live: Live) -> RunFacts:
    """Return the facts about a process, updated with its latest memory sample.

    A process that is killed does not write its final facts, but its samples include the last step.
    """
    facts = RunFacts.from_json(live.facts)
    peaks = {peak.device: peak for peak in facts.peaks}
    for sample in sorted((*live.overview, *live.recent)):
        told = peaks.get(sample.device)
        if sample.peak_bytes > (told.bytes if told is not None else 0):
            peaks[sample.device] = RunPeak(bytes=sample.peak_bytes, device=sample.device, step=sample.step)
    last = max(live.recent, default=None)
    if last is None or last.step <= facts.steps:
        return replace(facts, peaks=tuple(peaks.values()))
    return replace(facts, peaks=tuple(peaks.values()), steps=last.step, ooms=max(facts.ooms, last.ooms))


def shown(path: Path) -> Path:
    """Return a path for display. It is relative if it is inside the current folder."""
    try:
        return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    except FileNotFoundError:  # the current folder was deleted
        return path


def _is_evidence(path: Path) -> bool:
    return (path / ENVIRONMENT).is_file() or (path / SNAPSHOT).is_file()


def _json_of(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_regular(path, most_bytes=_MOST_JSON_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def headroom_bytes(card: RunCard, last: Sample, most_reserved_bytes: int, used_bytes: int | None = None) -> int:
    """Return how many bytes of a GPU were free when the process had reserved the most memory.

    The result is negative if other processes allocated memory later.

    Args:
        card: the GPU of the sample.
        last: the latest memory sample.
        most_reserved_bytes: the largest number of bytes that the process had reserved.
        used_bytes: the used memory of the GPU according to the driver; by default the value in the sample.
    """
    used = last.used_bytes if used_bytes is None else used_bytes
    others = max(0, used - last.reserved_bytes)  # 0 if the driver was never queried
    return min(card.limit_bytes, card.total_bytes - others) - most_reserved_bytes
