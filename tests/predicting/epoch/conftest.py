"""Run `ullage predict` with options of its own before the script, and the script's behind it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.forked import client
from tests.shared.commands import Ended, command, environment_of

SCRIPTS = Path(__file__).parent / "scripts"
Predict = Callable[..., Ended]


@pytest.fixture
def predict(workplace: Path) -> Predict:
    """Run a script of ours, or of the emulated card's tests, in an empty folder."""

    def run(options: Sequence[object], script: str | Path, *arguments: object, **changes: str) -> Ended:
        process = client.run(
            command("--gpu", "T4", *options, SCRIPTS / script, *arguments),
            cwd=workplace,
            env=environment_of(workplace, **changes),
            timeout=900,
        )
        return Ended(code=process.returncode, out=process.stdout, error=process.stderr)

    return run
