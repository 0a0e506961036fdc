"""A process that is forked is what a Python of its own would be: what it prints, and how it ends."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from tests.forked.client import COMPILER_LATER
from tests.shared.commands import SCRIPTS, command

_OF_THE_PROCESS = ("seconds", "host", "import_seconds", "step_seconds")
"""What belongs to the process: times, and what it has resident."""


def run(code: str, *, is_forked: bool = True, timeout: float = 900, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | COMPILER_LATER | changes
    return client.run([sys.executable, "-c", code], env=environment, timeout=timeout, is_forked=is_forked)


def test_a_prediction_says_the_same(tmp_path: Path) -> None:
    line = command("--gpu", "T4", "--json", SCRIPTS / "train.py")
    told: list[dict[str, Any]] = []
    for is_forked in (True, False):
        done = client.run(line, cwd=tmp_path, env=os.environ | COMPILER_LATER, is_forked=is_forked)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        told.append({name: value for name, value in answer.items() if name not in _OF_THE_PROCESS})
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "code",
    [
        "print('out'); import sys; print('error', file=sys.stderr)",
        "raise SystemExit(3)",
        "raise SystemExit('a sentence')",
        "import os; os._exit(5)",
        "import os; os.kill(os.getpid(), 9)",
        "raise KeyboardInterrupt",
        "import atexit; atexit.register(print, 'last')",
        "import sys; print(sys.argv, __name__, sys.stdin.read(), 'torch' in sys.modules)",
        "import os, traceback; print(os.environ['MINE'], {each.filename for each in traceback.extract_stack()})",
        "import signal; print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))",
    ],
)
def test_a_process_ends_and_prints_alike(code: str) -> None:
    forked, own = (run(code, is_forked=is_forked, MINE="1") for is_forked in (True, False))
    assert (forked.returncode, forked.stdout) == (own.returncode, own.stdout)
    assert forked.stderr == own.stderr or own.stderr.endswith("KeyboardInterrupt\n")


def test_a_script_is_found_with_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    (tmp_path / "script.py").write_text(
        "import beside, sys; print(beside.WORD, __file__, __name__, sys.argv, sys.path)"
    )
    forked, own = (
        client.run([sys.executable, tmp_path / "script.py", "a"], is_forked=is_forked) for is_forked in (True, False)
    )
    assert own.stdout.startswith("beside"), own.stderr
    assert forked.stdout == own.stdout


def test_torch_is_imported_by_who_imports_it() -> None:
    """It is in memory, and comes with the calls right before and after that a prediction waits for."""
    code = """
import os, sys
from ullage.gpu.tracing.torch_import import ImportWatch
ImportWatch("torch", before=lambda: print("before"), after=lambda torch: print("after", torch.__name__)).install()
assert "torch" not in sys.modules
import torch
import torch.nn.functional as F
print(F.__name__, torch.__spec__.name, torch.cuda.is_initialized())
"""
    done = run(code)
    assert done.stdout.splitlines() == ["before", "after torch", "torch.nn.functional torch False"], done.stderr


def test_one_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run("import time; time.sleep(600)", timeout=0.1)


def test_what_reads_other_variables_at_its_start_is_a_process_of_its_own() -> None:
    code = "import os; print(os.getppid())"
    assert run(code, OMP_NUM_THREADS="2").stdout == f"{os.getpid()}\n"
    assert run(code).stdout != f"{os.getpid()}\n"


@pytest.mark.parametrize("name", ["of_mine", "numpy", "sitecustomize"])
def test_a_folder_on_the_path_is_found_and_what_hides_something_makes_a_process_of_its_own(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / f"{name}.py").write_text("MINE = 1\n")
    code = f"import os, sys, {name}; print(os.getppid() == {os.getpid()}, {name}.MINE); print(sys.path)"
    path = os.pathsep.join([COMPILER_LATER["PYTHONPATH"], str(tmp_path)])
    forked, own = (run(code, is_forked=is_forked, PYTHONPATH=path) for is_forked in (True, False))
    assert own.stdout.startswith("True 1" if name != "sitecustomize" else ""), own.stderr
    assert forked.stdout.splitlines()[1:] == own.stdout.splitlines()[1:]
    assert forked.stdout.startswith("False 1") is (name == "of_mine"), forked.stderr


def test_a_call_returns_or_raises() -> None:
    assert client.call(pow, 2, 5) == 32
    with pytest.raises(ZeroDivisionError):
        client.call(divmod, 1, 0)
