"""How the tests run `make gpu` and `make gpu-compare`: on the emulated GPU, with the questions' packages."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GPU = "H100"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """The environment of `make gpu-dry-run`."""
    packages = Path(os.environ.get("ULLAGE_TEST_OUR_GPUS") or Path(sys.prefix).parents[1] / "our-gpus-packages")
    if not (packages / ".ready").is_file():
        pytest.skip(f"the questions' packages are not in {packages}: make gpu-dry-run installs them")
    return {**os.environ, "PYTHONPATH": str(packages), "ULLAGE_CUDNN": f"{sys.prefix}-cudnn"}


@pytest.fixture(scope="session")
def run(environment: dict[str, str]) -> Run:
    """Run a module of benchmarks.our_gpus."""

    def run(module: str, *words: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", f"benchmarks.our_gpus.{module}", *map(str, words)],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run
