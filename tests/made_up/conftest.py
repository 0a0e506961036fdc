"""Run `ullage predict` on scripts whose weights and data are not here."""

import subprocess
from pathlib import Path

import pytest

from ..emulated.conftest import Ended, Predict, command, environment_of, workplace  # noqa: F401  # a fixture

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def predict(workplace: Path) -> Predict:  # noqa: F811
    """Run `ullage predict` with a script of ours, and with no network."""

    def run(script: str | Path, *arguments: object, options: tuple[object, ...] = ()) -> Ended:
        process = subprocess.run(
            command("--gpu", "T4", *options, SCRIPTS / script, *arguments),
            capture_output=True,
            text=True,
            cwd=workplace,
            env=environment_of(workplace, **offline(workplace)),
            timeout=300,
        )
        return Ended(code=process.returncode, out=process.stdout, error=process.stderr)

    return run


def offline(workplace: Path) -> dict[str, str]:  # noqa: F811
    """Variables with which nothing is found but in folders."""
    home = str(workplace / "home")
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": home,
        "TORCH_HOME": home,
        "http_proxy": "http://127.0.0.1:1",
        "https_proxy": "http://127.0.0.1:1",
    }
