"""Scripts that measure their own phases, run under `ullage predict`."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from tests.shared.commands import environment_of

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a prediction says of a script's phases, and what the script has measured itself."""

    code: int
    error: str
    prediction: dict[str, Any]
    figures: dict[str, list[int]]

    @property
    def phases(self) -> dict[str, dict[str, Any]]:
        """The phases by their names."""
        return {phase["name"]: phase for phase in self.prediction["phases"]}

    @property
    def peaks(self) -> dict[str, list[int]]:
        """The peaks of what the script has measured: allocated, reserved."""
        return {
            name: [phase["peak_allocated_bytes"], phase["peak_reserved_bytes"]]
            for name, phase in self.phases.items()
            if name in self.figures
        }


Predict = Callable[..., Run]


@pytest.fixture
def predict(workplace: Path) -> Predict:
    """Run `ullage predict --json` with a script of ours in an empty folder."""

    def run(script: str | Path, *arguments: str, options: tuple[str, ...] = (), gpu: str = "T4") -> Run:
        command = [
            "-m",
            "ullage",
            "predict",
            "--json",
            "--draws",
            "1",
            "--gpu",
            gpu,
            *options,
            str(SCRIPTS / script),
            *arguments,
        ]
        figures = workplace / "figures.json"
        figures.unlink(missing_ok=True)
        done = client.run(
            [sys.executable, *command],
            cwd=workplace,
            env=environment_of(workplace, HF_HUB_OFFLINE="1"),
            timeout=900,
        )
        return Run(
            code=done.returncode,
            error=done.stderr,
            prediction=json.loads(done.stdout) if done.stdout else {},
            figures=json.loads(figures.read_text()) if figures.exists() else {},
        )

    return run
