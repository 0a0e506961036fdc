"""What the user's process meets where cuDNN's process, its answers on disk or the surroundings are not in order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulated.fresh import answer
from ullage.emulator.cudnn.cache import default_folder
from ullage.emulator.cudnn.wheel import find_cudnn

ROOT = Path(__file__).parents[2]
BEGIN = """
import ullage
ullage.emulate("A100")
import torch
from ullage.emulator import library

def convolve(channels):
    x = torch.zeros(2, channels, 16, 16, device="cuda")
    return torch.nn.functional.conv2d(x, torch.zeros(8, channels, 3, 3, device="cuda"))
"""


def test_a_planner_that_keeps_dying_leaves_the_script_alone(with_cudnn: dict[str, str]) -> None:
    """After three deaths every graph has an estimate, also one that cuDNN has planned before, in a new thread."""
    code = """
        import os, signal, sys, threading
        sys.path.insert(0, ROOT)
        from tests.cudnn.planners import planner_of
        convolve(8)
        for channels in (16, 24, 32):
            os.kill(planner_of(), signal.SIGKILL)
            convolve(channels)
            convolve(channels + 1)
        failed = []
        def again():
            try:
                convolve(8), convolve(40)
            except RuntimeError as error:
                failed.append(str(error))
        thread = threading.Thread(target=again)
        thread.start(), thread.join()
        plans = library.cudnn_plans()
        tell([failed, sorted(plans.by_source), list(plans.reasons)])
    """
    failed, sources, reasons = answer(
        BEGIN + "\n".join(line[8:] for line in code.replace("ROOT", repr(str(ROOT))).splitlines()),
        environment=with_cudnn,
    )
    assert failed == []
    assert "table" in sources
    assert "unknown" not in sources
    assert any("ended three times" in reason for reason in reasons)


def test_an_answer_on_disk_that_names_too_many_engines_is_none(with_cudnn: dict[str, str]) -> None:
    """Nothing hangs, and nothing is made room for."""
    code = BEGIN + "convolve(8)\ntell(sorted(library.cudnn_plans().by_source))"
    assert answer(code, environment=with_cudnn) == ["cudnn"]
    for path in Path(with_cudnn["ULLAGE_CUDNN_CACHE"]).glob("*/*/*"):
        question, separator, told = path.read_text().partition("\n\n")
        if told.startswith("engines"):
            path.write_text(f"{question}{separator}engines 4000000000\n{told.partition(chr(10))[2]}")
    assert answer(code, environment=with_cudnn) == ["table"]


def test_a_folder_may_be_named_from_where_one_stands(tmp_path: Path, cudnn: Path) -> None:
    """The planner stands elsewhere."""
    here = os.getcwd()
    os.chdir(tmp_path)
    try:
        os.environ["ULLAGE_CUDNN_CACHE"], kept = "answers", os.environ.get("ULLAGE_CUDNN_CACHE")
        assert default_folder() == tmp_path / "answers"
        os.environ["ULLAGE_CUDNN"] = os.path.relpath(cudnn)
        found = find_cudnn(tmp_path / "torch")
        assert found is not None
        assert found.library.is_absolute()
    finally:
        os.chdir(here)
        os.environ.pop("ULLAGE_CUDNN")
        if kept is not None:
            os.environ["ULLAGE_CUDNN_CACHE"] = kept


def test_without_a_home_nothing_is_kept() -> None:
    """`ullage.emulate` needs none; a user without one is common in containers."""
    program = (
        "import os, pwd\n"
        "import ullage.emulator.cudnn.start as start\n"
        "os.setuid(54321)\n"  # nobody's
        "print(repr(start._cache()))"
    )
    names = ("HOME", "ULLAGE_CUDNN_CACHE", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    if os.getuid() != 0:
        pytest.skip("only root can become a user whom the machine does not know")
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (0, "''\n"), done.stderr
