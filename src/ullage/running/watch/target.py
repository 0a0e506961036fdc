"""Finds the processes and runs that `ullage watch` shows."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ullage.base.errors import UsageError
from ullage.running.diagnosis.process import is_alive, process_of
from ullage.running.recording.plan import VARIABLE, RecordingPlan
from ullage.running.run_files.live import SUFFIX

_PROC: Final = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The process or folder that the user wants to watch. If neither is set, everything is shown."""

    pid: int | None = None
    folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRuns:
    """The processes and the folders of runs that `ullage watch` shows."""

    folders: tuple[Path, ...] = ()
    """The paths of the runs' folders."""
    subject: str
    notes: tuple[str, ...] = ()
    is_over: bool = False


def target_of(text: str | None) -> Target:
    """Parse the argument of `ullage watch`: a process ID, or the folder of a run.

    Raises:
        UsageError: the process or folder does not exist, or the folder has no file of a run.
    """
    if text is None:
        return Target()
    if text.isdecimal():
        pid = int(text)
        if not is_alive(pid):
            raise UsageError(
                f"process {pid} does not exist; expected the id of a running process, or the folder of a run, which "
                "can also "
                "be watched after its end"
            )
        return Target(pid=pid)
    folder = Path(text).absolute()
    if not folder.is_dir():
        raise UsageError(f"{text} is neither a process id nor a folder; expected the folder of a run")
    if not list(folder.glob(f"*{SUFFIX}")) and folder not in runs_here():
        raise UsageError(
            f"{text} has no file of a run (*{SUFFIX}); expected a folder that `ullage run` has written, or a process id"
        )
    return Target(folder=folder)


def find(target: Target) -> FoundRuns:
    """Return the processes and the folders of runs that match the user's argument."""
    if target.folder is not None:
        return FoundRuns(folders=(target.folder,), subject=f"run {target.folder.name}")
    if target.pid is None:
        return FoundRuns(folders=tuple(sorted(runs_here())), subject="all GPUs")
    return _of_process(target.pid)


def runs_here() -> dict[Path, list[int]]:
    """Return the folders of the user's active runs. Each key is a folder, and its value has the process IDs."""
    found: dict[Path, list[int]] = {}
    for pid in _numbers():
        folder = _folder_of(pid)
        if folder is not None:
            found.setdefault(folder, []).append(pid)
    return found


def _of_process(pid: int) -> FoundRuns:
    process = process_of(pid, None)
    name = f"process {pid}" + (f" ({process.name})" if process.name else "")
    if not is_alive(pid):
        return FoundRuns(subject=name, is_over=True)
    folder = _folder_of(pid)
    if folder is not None:
        return FoundRuns(folders=(folder,), subject=f"{name} of run {folder.name}")
    runs = runs_here()
    below = set(_descendants(pid))
    folders = tuple(sorted(path for path, pids in runs.items() if below.intersection(pids)))
    if folders:
        names = ", ".join(path.name for path in folders)
        return FoundRuns(folders=folders, subject=f"{name}, which runs {names}")
    why = (
        f"Process {pid} was not started by `ullage run`: only the memory that the driver reports for it is shown."
        if process.is_ours
        else f"Process {pid} belongs to another user: only the memory that the driver reports for it is shown."
    )
    return FoundRuns(subject=name, notes=(why,))


def _folder_of(pid: int) -> Path | None:
    try:
        if (_PROC / str(pid)).stat().st_uid != os.getuid():
            return None
        content = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    begin = f"{VARIABLE}=".encode()
    text = next((one[len(begin) :] for one in content.split(b"\0") if one.startswith(begin)), b"")
    try:
        plan = RecordingPlan.of({VARIABLE: os.fsdecode(text)})
    except UsageError:  # another program has set the variable
        return None
    return plan.folder if plan is not None else None


def _descendants(pid: int) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for other in _numbers():
        try:
            parent = (_PROC / str(other) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue
        children.setdefault(int(parent), []).append(other)
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        yield from below
        waiting += below


def _numbers() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit() and int(entry.name) != os.getpid())
