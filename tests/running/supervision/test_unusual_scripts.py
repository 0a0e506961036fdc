"""`ullage run` beside plain python on scripts that do unusual things: nobody can tell the two apart.

Output, exit code, files and the processes that are left are compared, of every script of `unusual_scripts.TABLE`.
What a script can see of us is in docs/processes.md, and left out there by name.
"""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest

from tests.running.supervision.unusual_scripts import TABLE, Unusual
from ullage.gpu.emulator.emulate import emulate_in

SLOW = "ULLAGE_SLOW" in os.environ
_MARK = "ULLAGE_TESTS_UNUSUAL"
_PYTHONS = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv")) + "/versions"
_NAMES = [name for name, one in TABLE.items() if SLOW or not (one.is_slow or one.needs_torch)]


@pytest.mark.parametrize("name", _NAMES)
def test_a_script_does_as_without_ullage(tmp_path: Path, name: str) -> None:
    unusual = TABLE[name]
    if unusual.needs and _shell(unusual, unusual.needs, tmp_path / "needs", "python", "")["code"]:
        pytest.skip(f"needs: {unusual.needs}")
    plain = _shell(unusual, unusual.shell, tmp_path / "there", "python", "")
    recorded = _shell(unusual, unusual.shell, tmp_path / "there", "ullage run", "ullage run")
    assert recorded == plain


def _shell(unusual: Unusual, line: str, folder: Path, python: str, start: str) -> dict[str, Any]:
    """Run a script's line in a new folder; return all that can be compared."""
    work = folder / "work"
    for place in (work, folder / "bin", folder / "tmp"):
        place.mkdir(parents=True)
    for name, text in ({"script.py": unusual.code} | dict(unusual.files)).items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(dedent(text))
    (folder / "bin" / "ullage").write_text(f"#!{sys.executable}\nfrom ullage.cli.app import main\nmain()\n")
    (folder / "bin" / "ullage").chmod(0o755)
    line = line.replace("{}", python).replace("{any}", start).replace("{plain}", sys.executable)
    own = {_MARK: folder.name, "PYTHONS": _PYTHONS, "TMPDIR": str(folder / "tmp"), "HOME": str(folder)}
    own["BASE"] = str(Path(sys.base_prefix, "bin", f"python{sys.version_info[0]}.{sys.version_info[1]}"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}
    environment |= own | {"PATH": f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment |= unusual.environment
    if unusual.needs_torch:
        emulate_in(environment, "T4", count=2)
        line = line.replace("ullage run", "ullage run --quiet")
    ended = subprocess.Popen(
        ["bash", "-c", line.strip()], cwd=work, env=environment, stdin=subprocess.DEVNULL, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, error = ended.communicate(timeout=900)
        left = _left(folder.name)
    finally:
        for process in _marked(folder.name):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        ended.communicate()
    told = {
        "code": ended.returncode,
        "out": _without_chance(out),
        "error": _without_chance(error),
        "files": _files(work) + _files(folder / "tmp"),
        "left": left,
        "shared": [path.name for path in Path("/dev/shm").iterdir() if own["TMPDIR"].replace("/", "-") in path.name],
    }
    for name in told["shared"]:
        Path("/dev/shm", name).unlink(missing_ok=True)
    shutil.rmtree(folder)
    return told


def _without_chance(output: bytes) -> list[str]:
    """The lines of an output without addresses and process numbers, and what bash says of a process that has ended."""
    text = re.sub(r"0x[0-9a-f]{6,}|(?<=started )\d+", "N", output.decode(errors="replace"))
    return re.sub(r"^(bash: line \d+: +)\d+ (.{24}).*$", r"\1\2", text, flags=re.MULTILINE).splitlines()


def _marked(token: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == token:
                found.append(process)
    return found


def _left(token: str) -> list[list[str]]:
    """The command lines of what still runs, once that does not change any more."""
    before: list[list[str]] | None = None
    while True:
        now = []
        for process in _marked(token):
            with suppress(psutil.NoSuchProcess):
                now.append([Path(word).name for word in process.cmdline()])
        now.sort()
        if now == before:
            return now
        before = now
        time.sleep(0.05 if now else 0)


def _files(folder: Path) -> list[tuple[str, str, bytes]]:
    """Every path with its mode, and its content; without what Python keeps of compiled files."""
    found = []
    for path in sorted(folder.rglob("*")):
        if "__pycache__" not in path.parts:
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            found.append((str(path.relative_to(folder)), stat.filemode(status.st_mode), content))
    return found
