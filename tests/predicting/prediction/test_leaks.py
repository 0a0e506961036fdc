"""A process that makes many predictions keeps nothing of them."""

import os
import threading
from pathlib import Path

import psutil
import pytest

from tests.shared.commands import SCRIPTS
from ullage.predicting.prediction.predict import Request, predict

pytestmark = pytest.mark.own_process


def held() -> tuple[int, int, int, set[str]]:
    """What this process holds: file descriptors, threads, children, and names in shared memory."""
    process = psutil.Process()
    return process.num_fds(), threading.active_count(), len(process.children()), set(os.listdir("/dev/shm"))


@pytest.mark.parametrize(
    "runs",
    [
        5,
        pytest.param(
            200,
            marks=pytest.mark.skipif("ULLAGE_SLOW" not in os.environ, reason="minutes: set ULLAGE_SLOW=1 for it"),
        ),
    ],
)
def test_many_predictions_leave_nothing(runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptors, threads, processes and files are the same after many runs; memory grows by less than 8 MiB."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    request = Request.of(SCRIPTS / "ends.py", ("exit 0",), gpu="T4")
    predict(request)  # what is loaded once
    before, memory = held(), psutil.Process().memory_info().rss
    for _ in range(runs):
        assert predict(request).ended == "ended"
    assert held() == before
    assert list(tmp_path.iterdir()) == []
    assert psutil.Process().memory_info().rss - memory < 8 << 20
