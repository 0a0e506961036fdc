"""Run the command line as a user does, and look for what it leaves behind."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.forked import client

from .fresh import USUAL

SCRIPTS = Path(__file__).parent / "scripts"
slow = pytest.mark.skipif("ULLAGE_SLOW" not in os.environ, reason="half a minute for one more of a kind: ULLAGE_SLOW=1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What a command said, and its exit code."""

    code: int
    out: str
    error: str

    @property
    def text(self) -> str:
        """Standard output without its line breaks: where a sentence wraps depends on the length of a path in it."""
        return " ".join(self.out.split())

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which has to be JSON and nothing else."""
        data: dict[str, Any] = json.loads(self.out)
        return data


Predict = Callable[..., Ended]


def command(*arguments: object) -> list[str]:
    """The command line of `ullage predict` with arguments."""
    return [sys.executable, "-m", "ullage", "predict", *(str(argument) for argument in arguments)]


def processes_of(folder: Path, name: str = "") -> list[psutil.Process]:
    """Every living process whose temporary folder is `folder` and whose program's name contains `name`.

    The name is read here: a process may have ended by the time that a caller looks at it.
    """
    found = []
    for process in psutil.process_iter():
        try:
            lives = process.status() != psutil.STATUS_ZOMBIE
            if lives and process.environ().get("TMPDIR") == os.path.realpath(folder) and name in process.name():
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


@pytest.fixture
def workplace(tmp_path: Path) -> Iterator[Path]:
    """A folder to work in, with a `tmp` for temporary files, which has to be as empty and as quiet afterwards."""
    # Sockets are made in there, whose paths may have 107 characters: pytest's own folder is too deep.
    temporary = Path(tempfile.mkdtemp(prefix="ullage-"))
    (tmp_path / "tmp").symlink_to(temporary)
    shared = set(os.listdir("/dev/shm"))
    yield tmp_path
    assert processes_of(temporary) == []
    assert list(temporary.iterdir()) == []
    temporary.rmdir()
    new = [name for name in os.listdir("/dev/shm") if name not in shared and name.startswith("torch_")]
    # torch_PID_...: left behind is what its process has outlived, and not what others on the machine use.
    assert [name for name in new if not psutil.pid_exists(int(name.split("_")[1]))] == []


def environment_of(workplace: Path, **changes: str) -> dict[str, str]:
    """The environment of a command in `workplace`."""
    cleaned = {name: value for name, value in os.environ.items() if not name.startswith(("PYTORCH_", "ULLAGE_"))}
    # PyTorch makes the folder of its compiler at the first optimizer, on a real card too.
    places = {"TMPDIR": os.path.realpath(workplace / "tmp"), "TORCHINDUCTOR_CACHE_DIR": str(workplace / "inductor")}
    return {**cleaned, **places, "COLUMNS": "160", **USUAL, **changes}


@pytest.fixture
def predict(workplace: Path, is_forked: bool) -> Predict:
    """Run `ullage predict` with a script of ours in an empty folder."""

    def run(script: str | Path, *arguments: object, gpu: str | None = "T4", **changes: str) -> Ended:
        options = ["--gpu", gpu] if gpu else []
        words = [str(argument) for argument in arguments]
        # Some of the scripts have these options too, and behind their name they would be theirs.
        for name, count in (("--json", 1), ("--steps", 2)):
            before = words[: words.index("--")] if "--" in words else words
            if name in before:
                place = words.index(name)
                options += words[place : place + count]
                del words[place : place + count]
        process = client.run(
            command(*options, SCRIPTS / script, *words),
            cwd=workplace,
            env=environment_of(workplace, **changes),
            timeout=900,
            is_forked=is_forked,
        )
        return Ended(code=process.returncode, out=process.stdout, error=process.stderr)

    return run
