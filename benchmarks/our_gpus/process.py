"""Processes that leave nothing behind: whoever starts one may be killed at any moment."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it ends (Linux, prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


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
    """End a process and all that is in its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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
