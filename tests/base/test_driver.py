"""Rules of asking the driver: one place does it, and leaves what others in the process have of NVML alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared.inside import inside
from ullage.base.driver import asked, count_used

no_driver = pytest.mark.skipif(not count_used().why_not, reason="there is a driver here")


@no_driver
def test_without_a_driver_a_sentence_says_so() -> None:
    assert count_used().why_not == "libnvidia-ml.so.1 cannot be loaded: no NVIDIA driver is installed"


@no_driver
def test_a_card_that_is_emulated_later_answers() -> None:
    """Although nothing did before; and to import ullage asks nobody."""
    code = (
        "import sys, ullage\n"
        "assert 'pynvml' not in sys.modules\n"
        "from ullage.base.driver import count_used\n"
        "assert count_used().why_not\n"
        "ullage.emulate('T4')\n"
        "print(*(f'{card.index} {card.name} {card.used_bytes > 0}' for card in count_used().cards))"
    )
    environment = {name: text for name, text in os.environ.items() if name != "ULLAGE_EMULATED_CARD"}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, env=environment)
    assert (ended.stdout, ended.stderr) == ("0 Tesla T4 True\n", "")


@inside
def _beside_a_user_of_nvml() -> None:
    import pynvml

    pynvml.nvmlInit()
    with asked() as nvml:
        [(index, handle)] = nvml.handles()
        memory = nvml.memory_of(handle)
        assert memory is not None
        assert (index, memory.used_bytes < memory.total_bytes) == (0, True)
        assert nvml.call("nvmlDeviceGetComputeMode", handle) is None  # the emulated driver does not have it
        assert nvml.call("nvmlDeviceGetHandleByIndex", 1) is None
    assert pynvml._nvmlLib_refcount == 1
    pynvml.nvmlShutdown()


def test_a_script_that_asks_nvml_itself_keeps_it() -> None:
    """What the driver does not have, or does not tell, is none."""
    _beside_a_user_of_nvml()


def test_a_driver_that_does_not_start_is_told_with_its_answer(tmp_path: Path) -> None:
    """As after an update of the driver without a restart: the library is there, and refuses."""
    compiler = shutil.which("cc")
    assert compiler is not None
    (tmp_path / "refuses.c").write_text("int nvmlInitWithFlags(unsigned flags) { return 18; }")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "refuses.c"], check=True, timeout=900)
    ended = subprocess.run(
        [sys.executable, "-c", "from ullage.base.driver import count_used; print(count_used().why_not)"],
        capture_output=True,
        text=True,
        timeout=900,
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
    )
    assert ended.stdout == "NVML cannot be initialized: RM has detected an NVML/RM version mismatch. (NVML error 18)\n"
