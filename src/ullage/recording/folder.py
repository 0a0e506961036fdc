"""The folder of a run as it lies on the disk, during the run and after it: files of its processes, and evidence."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ullage._errors import UsageError
from ullage.recording.evidence_files import ENVIRONMENT, SNAPSHOT
from ullage.recording.facts import Facts
from ullage.recording.live import SUFFIX, Live, LiveFileError, read_live

_MOST_JSON_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a run."""

    live: Live
    facts: Facts

    @property
    def name(self) -> str:
        """What people call it: "rank 3", or "process 4711"."""
        return f"process {self.facts.pid}" if self.facts.rank is None else f"rank {self.facts.rank}"

    @property
    def peak_bytes(self) -> int:
        """The most that was allocated on one of its devices."""
        return max((peak.bytes for peak in self.facts.peaks), default=0)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was written when memory ran out."""

    folder: Path
    surroundings: dict[str, Any]

    @property
    def snapshot(self) -> Path | None:
        """The allocator's snapshot, where it was written whole."""
        path = self.folder / SNAPSHOT
        return path if path.is_file() else None

    @property
    def time(self) -> float:
        """Seconds since 1970; 0 where it is not known."""
        return _float(self.surroundings.get("time"))

    @property
    def pid(self) -> int | None:
        """Of the process."""
        facts = self.surroundings.get("facts")
        pid = facts.get("pid") if isinstance(facts, dict) else None
        return pid if isinstance(pid, int) else None


@dataclass(frozen=True, slots=True)
class RunFolder:
    """All that a run has left."""

    folder: Path
    processes: tuple[Process, ...]
    """Those that have used a card, by rank."""
    evidence: tuple[Evidence, ...]
    """In the order of time."""


def read_run(folder: Path) -> RunFolder:
    """Read the folder of a run, or that of one of its evidences; what is not whole in it is left out.

    Raises:
        UsageError: it is no folder of a run.
        OSError: it cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; expected one that `ullage run` has written")
    if _is_evidence(folder):
        run = read_run(folder.absolute().parent)
        return replace(run, evidence=tuple(one for one in run.evidence if one.folder.name == folder.absolute().name))
    processes, evidence = [], []
    for path in sorted(folder.iterdir()):
        if path.suffix == SUFFIX and path.is_file():
            try:
                live = read_live(path)
            except LiveFileError:
                continue
            processes.append(Process(live, Facts.from_json(live.facts)))
        elif _is_evidence(path):
            evidence.append(Evidence(path, _json_of(path / ENVIRONMENT)))
    if not processes and not evidence:
        raise UsageError(
            f"{folder} has neither a {SUFFIX} file nor evidence in it; expected a folder that `ullage run` has written"
        )
    processes.sort(key=lambda process: (process.facts.rank is None, process.facts.rank or 0, process.facts.started))
    evidence.sort(key=lambda one: one.time)
    return RunFolder(folder, tuple(processes), tuple(evidence))


def _is_evidence(path: Path) -> bool:
    return (path / ENVIRONMENT).is_file() or (path / SNAPSHOT).is_file()


def _json_of(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_JSON_BYTES:
            return {}
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _float(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
