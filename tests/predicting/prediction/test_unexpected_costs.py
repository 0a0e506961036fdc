"""The scripts of docs/unexpected_costs.md need more memory than with the change that the page names."""

import pytest

from benchmarks.unexpected_costs import CHANGES, SCRIPTS
from tests.forked import client
from ullage.predicting.prediction.predict import predict
from ullage.predicting.prediction.request import Request

NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


def test_every_script_has_a_change() -> None:
    assert sorted(CHANGES) == NAMES


@pytest.mark.by_day(3)
@pytest.mark.parametrize("name", NAMES)
def test_the_change_needs_less(name: str) -> None:
    before, after = (
        client.call(predict, Request.of(SCRIPTS / f"{name}.py", arguments, gpu="H100"))
        for arguments in ((), ("changed",))
    )
    assert before.peak_allocated_bytes > 1.1 * after.peak_allocated_bytes
