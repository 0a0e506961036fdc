"""The folder of a run on disk, during the run and after it: the files of its processes, and evidence."""

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
"""The name of the page in a folder of evidence, which also has the three files named above."""
_MOST_JSON_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class RunProcess:
    """One process of a run."""

    live: Live
    facts: RunFacts

    @property
    def name(self) -> str:
        """The name of the process: "rank 3", or "process 4711"."""
        return f"process {self.facts.pid}" if self.facts.rank is None else f"rank {self.facts.rank}"

    @property
    def told_steps(self) -> int:
        """The number of steps when it last told its facts, such as whether memory grows; `facts.steps` may be more."""
        return RunFacts.from_json(self.live.facts).steps

    @property
    def peak_bytes(self) -> int:
        """The highest peak of allocated memory on one of its devices."""
        return max((peak.bytes for peak in self.facts.peaks), default=0)


@dataclass(frozen=True, slots=True)
class OomEvidence:
    """The folder that was written when memory ran out."""

    folder: Path
    surroundings: dict[str, Any]

    @property
    def snapshot(self) -> Path | None:
        """The path of the allocator's snapshot; None if it was not written completely."""
        path = self.folder / SNAPSHOT
        return path if path.is_file() else None

    @property
    def time(self) -> float:
        """The time at which memory ran out, in seconds since 1970; 0 if it is not known."""
        return self._told("time", float, int) or 0.0

    @property
    def pid(self) -> int | None:
        """The process's id; None if it is not known."""
        facts = self._told("facts", dict) or {}
        pid = facts.get("pid")
        return pid if isinstance(pid, int) else None

    @property
    def device(self) -> int | None:
        """The device that ran out of memory; None if it is not known."""
        return self._told("device", int)

    @property
    def torch(self) -> str | None:
        """The version of torch; None if it is not known."""
        return self._told("torch", str)

    @property
    def step(self) -> int | None:
        """The step in which memory ran out, counted from 1; None if it is not known."""
        return self._told("step", int)

    @property
    def line(self) -> str | None:
        """The user's line that asked for memory, such as "train.py:33", or that called backward; None: not known."""
        return self._told("line", str)

    @property
    def is_in_backward(self) -> bool:
        """Whether memory ran out in backward, which `line` called."""
        return self._told("is_in_backward", bool) or False

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that matter to memory, as far as they were written."""
        told = self._told("variables", dict) or {}
        return {name: value for name, value in told.items() if isinstance(value, str)}

    def _told(self, name: str, *kinds: type[T]) -> T | None:
        """Return what the process has written of itself; None where it has not, or the file was changed since."""
        value = self.surroundings.get(name)
        return cast(T, value) if type(value) in kinds else None


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Everything that a run has written."""

    folder: Path
    processes: tuple[RunProcess, ...]
    """The processes that have used a card, by rank."""
    evidence: tuple[OomEvidence, ...]
    """The folders of evidence, oldest first."""


def read_run(folder: Path) -> RunFolder:
    """Read the folder of a run, or a folder of evidence in it; incomplete files are left out.

    Raises:
        UsageError: it is not the folder of a run.
        OSError: it cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; expected one that `ullage run` has written")
    if _is_evidence(folder):
        run = read_run(folder.absolute().parent)
        return replace(run, evidence=tuple(one for one in run.evidence if one.folder.name == folder.absolute().name))
    processes, evidence = [], []
    for path in sorted(folder.iterdir()):
        if path.suffix == SUFFIX and path.is_file():
            try:
                live = read_live(path)
            except (LiveFileError, OSError):  # of another program, or another user
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
    """Tell whether a folder looks like that of a run, by the names and sizes in it: no file is opened."""
    with os.scandir(folder) as entries:
        return any(
            (entry.is_file() and entry.stat().st_size == LIVE_BYTES)
            if entry.name.endswith(SUFFIX)
            else entry.is_dir() and _is_evidence(Path(entry.path))
            for entry in entries
        )


def facts_of(live: Live) -> RunFacts:
    """Return the facts of a process, with what its samples say where they are newer than what it told.

    A process that is killed, crashes or leaves by os._exit tells nothing at its end; its samples go to its last step.
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
    """Return a path as people read it: from the current folder on, where it lies below that."""
    try:
        return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    except FileNotFoundError:  # the folder that we are in is gone
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
    """Return how much of a card was left at the highest reserved memory, with contexts and other processes counted.

    It is below zero if other processes took memory later.

    Args:
        card: the card of the sample.
        last: the latest sample.
        most_reserved_bytes: the most that the process had reserved.
        used_bytes: the used memory of the card by the driver's count now; by default its count in the sample.
    """
    used = last.used_bytes if used_bytes is None else used_bytes
    others = max(0, used - last.reserved_bytes)  # and nothing where the driver has never been asked
    return min(card.limit_bytes, card.total_bytes - others) - most_reserved_bytes
