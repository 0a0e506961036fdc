"""Where NVIDIA's cuDNN is for the tests that ask it."""

import os
import sys
from pathlib import Path

import pytest

from ullage.gpu.emulator.cudnn.wheel import VARIABLE

SLOW = "ULLAGE_SLOW" in os.environ


@pytest.fixture(scope="session")
def cudnn() -> Path:
    """The folder with cuDNN that `tools/cudnn.sh` has made beside this environment."""
    folder = Path(os.environ.get("ULLAGE_TEST_CUDNN") or f"{sys.prefix}-cudnn")
    if not (folder / "nvidia" / "cudnn").is_dir():
        pytest.skip(
            f"no cuDNN in {folder}: tools/cudnn.sh {sys.prefix} {sys.prefix}-cudnn (ULLAGE_TEST_CUDNN names another)"
        )
    return folder


@pytest.fixture
def with_cudnn(cudnn: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of a process that asks cuDNN, and has asked it nothing before."""
    return {VARIABLE: str(cudnn), "ULLAGE_CUDNN_CACHE": str(tmp_path / "answers")}
