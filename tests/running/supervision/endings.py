"""The matrix of endings: what may happen to a user's code, and in which of our processes it runs meanwhile.

`observe` has one of them happen, and returns what is told, with which exit code, and what is left. What is promised for
each is the table in docs/processes.md, which `test_endings_matrix` reads.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

MARK: Final = "ULLAGE_TESTS_ENDING"
_ENDING_SECONDS: Final = 900
_JUMPS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
/* The wall clock is years off, another way at each call; the monotonic one, which no machine sets, is as it is. */
int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    static long calls;
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, now);
    if (which == CLOCK_REALTIME) now->tv_sec += (++calls % 3 - 1) * 50000000L;
    return failed;
}
"""


@dataclass(frozen=True, slots=True)
class Happening:
    """What happens: in the user's code, or to the place in which our tool is started."""

    code: str = ""
    """Of the user, with `os`, `signal`, `subprocess` and `sys` imported."""
    shell: str = "{}"
    """The line that starts the tool: {} is its command; `$HERE` the folder with the script."""
    needs: str = ""
    """A line for bash that succeeds where it can happen."""
    is_left: str = ""
    """The name of a process that `ullage run` leaves, because python would."""


_STOP = 'subprocess.Popen(["sh", "-c", f"kill -STOP {os.getpid()}; sleep 0.3; kill -CONT {os.getpid()}"]).wait()'
_MOUNT = (
    "mkdir there && mount -t tmpfs -o {options} none there && cd there && {work}\n"
    "code=$?; cd ..; umount there; exit $code"
)
_MAY_MOUNT = "mkdir tried && mount -t tmpfs none tried && umount tried && rmdir tried"

HAPPENINGS: Mapping[str, Happening] = {
    "it comes to its end": Happening("pass"),
    "`os._exit(3)`": Happening("os._exit(3)"),
    "SIGKILL": Happening("os.kill(os.getpid(), signal.SIGKILL)"),
    "SIGTERM": Happening("os.kill(os.getpid(), signal.SIGTERM)"),
    "a segmentation fault": Happening("import ctypes; ctypes.string_at(0)", shell="ulimit -c 0; {}"),
    "SIGSTOP, then SIGCONT": Happening(_STOP),
    "`exec` of another program": Happening('os.execv("/bin/true", ["true"])'),
    "a daemon stays behind": Happening(
        'subprocess.Popen(["sleep", "77"], start_new_session=True, stdout=-3, stderr=-3, stdin=-3)', is_left="sleep"
    ),
    "it closes every descriptor": Happening("os.closerange(0, 4096)"),
    "it closes all, and opens others": Happening(
        "os.closerange(0, 4096); kept = [open('/dev/null', 'w+') for _ in range(40)]"
    ),
    "descriptors 0 to 2 are closed before": Happening("open('/dev/null').close()", shell="{} <&- >&- 2>&-"),
    "it starts another Python": Happening(
        'subprocess.run([os.environ["OTHER_PYTHON"], "-c", "print(1)"], check=True)', needs="$OTHER_PYTHON -c 1"
    ),
    "a namespace of processes": Happening(
        'subprocess.run(["unshare", "-r", "-p", "-f", sys.executable, "-c", "print(1)"], check=True)',
        needs="unshare -r -p -f true",
    ),
    "it removes its folder": Happening("import shutil; shutil.rmtree(os.getcwd())", shell="mkdir there; cd there; {}"),
    "its folder was removed before": Happening("pass", shell="mkdir there; cd there; rmdir ../there; {}"),
    "its folder is read-only": Happening(
        "pass", shell=_MOUNT.replace("{options}", "ro").replace("{work}", "{}"), needs=_MAY_MOUNT
    ),
    "its folder and `$TMPDIR` are full": Happening(
        "pass",
        shell=_MOUNT.replace("{options}", "size=4k,nr_inodes=2").replace("{work}", "touch one && TMPDIR=$PWD {}"),
        needs=_MAY_MOUNT,
    ),
    "no file may be written (`ulimit -f 0`)": Happening("pass", shell="ulimit -f 0; {}"),
    "the clock jumps": Happening(
        "import time; time.time(); time.sleep(1.2)",
        shell='printf %s "$JUMPS" >jumps.c; cc -shared -fPIC -o jumps.so jumps.c; LD_PRELOAD=$PWD/jumps.so {}\n'
        "code=$?; rm jumps.c jumps.so; exit $code",
        needs="which cc",
    ),
}

_IMPORTS = "import os, signal, subprocess, sys\n"
_ISOLATED = """
import ullage
def work():
{code}
    return 7
print(ullage.isolated(work))
"""
_TEST = """
import pytest
@pytest.mark.gpu_memory(gpu="T4")
def test_it():
{code}
"""
_PLANNED = """
import ullage
ullage.emulate("A100")
import torch
torch.nn.functional.conv2d(torch.empty(1, 3, 9, 9, device="cuda"), torch.empty(4, 3, 3, 3, device="cuda"))
{code}
"""
_PYTEST = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "{script}"]
TOOLS: Mapping[str, tuple[str, list[str]]] = {
    "`ullage run`": ("{code}\n", ["-m", "ullage", "run", "{script}"]),
    "`ullage predict`": ("{code}\n", ["-m", "ullage", "predict", "--gpu", "T4", "{script}"]),
    "`ullage.isolated`": (_ISOLATED, ["{script}"]),
    "the pytest plugin": (_TEST, _PYTEST),
    "cuDNN's planner": (_PLANNED, ["{script}"]),
}
"""By its heading in the table: the file with the user's code, and the arguments of python."""
ALONE: Final = "pytest alone"
_ALL = TOOLS | {ALONE: (_TEST, [*_PYTEST, "-p", "no:ullage"])}


@dataclass(frozen=True, slots=True)
class Observed:
    """What came of it."""

    code: int
    """The exit code; negative: the signal that ended the command."""
    text: str
    """What was written, as one line."""
    left: list[str]
    """Processes, files and shared memory that are left, but for the script."""


def observe(tool: str, happening: Happening, folder: Path, more: Mapping[str, str]) -> Observed | None:
    """Have something happen in a tool's process; None if it cannot happen here.

    Args:
        tool: of `TOOLS`, or `ALONE`.
        happening: of `HAPPENINGS`.
        folder: an empty folder to do it in.
        more: variables of the environment.
    """
    work, own, temporary = folder / "work", folder / "own", folder / "tmp"
    for place in (work, own, temporary):
        place.mkdir()
    template, arguments = _ALL[tool]
    code = textwrap.indent(happening.code, "    ") if "def " in template else happening.code
    script = own / "test_script.py"
    script.write_text(_IMPORTS + template.replace("{code}", code))
    command = shlex.join([sys.executable, *(script.as_posix() if word == "{script}" else word for word in arguments)])
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}
    environment |= {MARK: str(folder), "TMPDIR": str(temporary), "JUMPS": _JUMPS, "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= more
    can = ["bash", "-c", happening.needs]
    if happening.needs and subprocess.run(can, cwd=work, env=environment, capture_output=True, check=False).returncode:
        return None
    line = happening.shell.replace("{}", command) if happening.shell != "{}" else f"exec {command}"
    process = subprocess.Popen(
        ["bash", "-c", line], cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=-2
    )
    try:
        output = process.communicate(timeout=900)[0]
        left = _left(folder, happening.is_left)
    finally:
        for one in _marked(folder):
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        process.communicate()
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", output.decode(errors="replace")).split())
    paths = (path.relative_to(folder) for place in (work, temporary) for path in place.rglob("*"))
    left += [str(path) for path in paths if path.name != "there" and "pytest-of-" not in str(path)]
    left += sorted(path.name for path in Path("/dev/shm").glob("ullage*"))  # others' tests have theirs there
    shutil.rmtree(work, ignore_errors=True)
    code_of_signal = 128  # as bash gives it
    code_told = process.returncode if process.returncode <= code_of_signal else code_of_signal - process.returncode
    return Observed(code_told, text, left)


def _left(folder: Path, may_be: str) -> list[str]:
    """The names of what still runs, beside what may, once it had time to hear that it is to end."""
    until = time.monotonic() + _ENDING_SECONDS
    while True:
        names = []
        for process in _marked(folder):
            with suppress(psutil.NoSuchProcess):
                names.append(process.name())
        if names in ([], [may_be]) or time.monotonic() > until:
            return names
        time.sleep(0.02)


def _marked(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == str(folder):
                found.append(process)
    return found
