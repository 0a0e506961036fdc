"""The package's face: exact names, quick to import, no torch needed."""

import json
import subprocess
import sys

import pytest

import ullage

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; "


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_public_names_are_exactly_these() -> None:
    assert set(ullage.__all__) == {
        "Certificate",
        "Emulation",
        "EmulationError",
        "Guard",
        "Holding",
        "Holdings",
        "IsolationError",
        "Monitor",
        "ScriptError",
        "TokenBudgetBatchSampler",
        "TorchMissingError",
        "UllageError",
        "UnknownGpuError",
        "UsageError",
        "emulate",
        "isolated",
        "owners",
        "release",
    }
    without_torch = set(ullage.__all__) - {"Guard", "Monitor", "owners", "release"}
    assert all(getattr(ullage, name).__name__ == name for name in without_torch)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = ullage.nothing


def test_the_guard_says_that_it_needs_torch() -> None:
    done = run(WITHOUT_TORCH + "import ullage; ullage.Guard")
    assert "TorchMissingError: " in done.stderr
    assert "pip install" in done.stderr


def test_import_takes_under_100_ms_and_no_torch() -> None:
    """The best of five counts: a busy machine may be slow, the package may not."""
    code = (
        "import sys, time; began = time.perf_counter(); import ullage; "
        "print(time.perf_counter() - began, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    answers = [run(code).stdout.split() for _ in range(5)]
    assert min(float(seconds) for seconds, *_ in answers) < 0.1
    assert all(loaded == ["False", "False"] for _, *loaded in answers)


def test_the_check_for_torch_can_fail() -> None:
    done = run(WITHOUT_TORCH + "import torch")
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr or "ImportError" in done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "cli.app",
        "prediction.script",
        "prediction.describe",
        "report.terminal",
        "ownership.role",
        "ownership.isolated",
        "emulator",
        "gpus",
        "guard.sampler",
    ],
)
def test_works_without_torch(module: str) -> None:
    done = run(WITHOUT_TORCH + f"import ullage.{module}")
    assert done.returncode == 0, done.stderr


def test_help_works_without_torch_and_teaches() -> None:
    done = run(WITHOUT_TORCH + "from ullage.cli.app import main; main(['predict', '--help'])")
    assert done.returncode == 0, done.stderr
    assert "--gpu" in done.stdout
    assert "Exit code" in done.stdout


def test_gpus_lists_every_card_with_sources() -> None:
    done = run(WITHOUT_TORCH + "from ullage.cli.app import main; main(['gpus', '--json'])")
    cards = json.loads(done.stdout)
    assert len(cards) >= 25
    assert all(card["sources"] for card in cards)
