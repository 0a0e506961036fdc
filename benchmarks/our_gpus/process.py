"""Processes that leave nothing behind: whoever starts one may be killed at any moment."""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
END_SECONDS = 10
"""How long a killed process may take to end; one that is stuck in the driver is left."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)


_LIBC = ctypes.CDLL(None)  # loaded here, because to load it between fork and exec may hang
_CHARACTERS = 400
_adopts = False


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends (Linux, prctl(2)). A fork has to ask again."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that `end_orphans` finds them."""
    global _adopts
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _adopts = True


def last_error(text: str) -> str:
    """Return the error that a Python program has ended with, in one line and without folders' names.

    It is the first line after the frames of the last traceback: the texts of CUDA errors go on below it with advice
    that is always the same. Without a traceback it is the last line.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    begin = max((n for n, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")), default=-1)
    after = [line for line in lines[begin + 1 :] if not line[0].isspace()] if begin >= 0 else lines[-1:]
    return without_folders(after[0].strip() if after else "")[:_CHARACTERS]


def without_folders(text: str) -> str:
    """Return a text in which paths have only their last part: a record must not tell where somebody works."""
    for place in filter(None, [str(ROOT), os.path.expanduser("~"), os.environ.get("TMPDIR")]):
        text = text.replace(place, "")
    text = re.sub(r"(?<=['\"])/[^'\"\n]*/(?=[^/'\"\n]*['\"])", "", text)  # a path in quotes may have spaces
    return re.sub(r"(?<![\w.])/(?:[^\s/'\":]+/)*", "", text)


def start(command: Sequence[str], *, environment: Mapping[str, str], output: int) -> "subprocess.Popen[bytes]":
    """Start a process that leads a group of its own, writes to `output` and dies with this one."""
    return subprocess.Popen(
        list(command),
        cwd=ROOT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it has started, whatever group that is in."""
    doomed = list(_descendants(process.pid))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    _kill(doomed)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)


def end_orphans(but: Sequence["subprocess.Popen[bytes]"] = ()) -> None:
    """End what a question has left running: children of this process that it did not start itself.

    Only where `adopt_orphans` was called: in another program, children may be anybody's.
    """
    if not _adopts:
        return
    kept = {process.pid for process in but}
    left = [pid for pid, parent in _parents().items() if parent == os.getpid() and pid not in kept]
    for pid in left:
        doomed = [pid, *_descendants(pid)]
        _kill(doomed)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> Iterator[int]:
    parents = _parents()
    waiting = [pid]
    while waiting:
        above = waiting.pop()
        children = [child for child, parent in parents.items() if parent == above]
        yield from children
        waiting += children


def _parents() -> dict[int, int]:
    """Return the parent of every process (proc(5): the fourth field of /proc/PID/stat)."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, IndexError):
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def run_python(
    arguments: Sequence[str], *, environment: Mapping[str, str], limit_seconds: float, folder: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run Python with arguments and return what it printed; it dies with this process.

    Raises:
        subprocess.TimeoutExpired: it took longer than the limit, and was ended.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder or ROOT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=limit_seconds,
        preexec_fn=die_with_parent,
    )
