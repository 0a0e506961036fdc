"""Each engine does the same work with the same answers, does lost work again, and leaves nothing that runs."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import psutil
import pytest

from ullage.base.engines.chosen import open_engine
from ullage.base.engines.engine import EngineError, WorkEngine
from ullage.base.errors import UllageError, UsageError

WORK = "tests.base.engines.work"
ROOT = Path(__file__).parents[3]
OF_PROCESSES = ("submitit-local", "ray")


@pytest.fixture(autouse=True)
def _in_an_empty_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # Ray would write a token into the user's home
    monkeypatch.setenv("RAY_ADDRESS", "local")  # not a cluster that runs here for something else


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[WorkEngine]:
    on: str = request.param
    if on in OF_PROCESSES:
        name = on.partition("-")[0]
        pytest.importorskip(name, reason=f"{name} is not in the test environment: `make clusters` runs these with it")
    with open_engine(on, workers=2) as engine:
        yield engine


each = pytest.mark.parametrize("opened", ["local", *OF_PROCESSES], indirect=True)
of_processes = pytest.mark.parametrize("opened", OF_PROCESSES, indirect=True)


@each
def test_it_does_what_it_is_given(opened: WorkEngine) -> None:
    futures = [opened.submit(f"{WORK}:double", {"number": number}) for number in range(6)]
    assert [future.result()["number"] for future in futures] == [0, 2, 4, 6, 8, 10]


@of_processes
def test_it_does_it_in_processes_of_their_own(opened: WorkEngine) -> None:
    assert opened.submit(f"{WORK}:double", {"number": 1}).result()["process"] != os.getpid()


@of_processes
def test_a_killed_worker_is_replaced(opened: WorkEngine, tmp_path: Path) -> None:
    payload = {"seen": str(tmp_path / "seen"), "deaths": 1}
    assert opened.submit(f"{WORK}:die_at_first", payload).result() == {"attempts": 2}


@of_processes
def test_work_that_is_lost_again_and_again_is_an_error(opened: WorkEngine, tmp_path: Path) -> None:
    lost = opened.submit(f"{WORK}:die_at_first", {"seen": str(tmp_path / "seen"), "deaths": 99})
    with pytest.raises(EngineError, match=r"lost a task|ended without a result"):
        lost.result()
    assert opened.submit(f"{WORK}:double", {"number": 1}).result()["number"] == 2


@each
def test_what_runs_ends_when_it_is_cancelled(opened: WorkEngine, tmp_path: Path) -> None:
    marks = [tmp_path / f"began-{number}" for number in range(2)]
    running = [opened.submit(f"{WORK}:wait", {"began": str(mark)}) for mark in marks]
    _until(lambda: all(mark.exists() and mark.read_text() for mark in marks))
    processes = {int(mark.read_text()) for mark in marks} - {os.getpid()}
    waiting = opened.submit(f"{WORK}:double", {"number": 1})
    opened.cancel()
    opened.cancel()
    for future in (*running, waiting):
        try:
            future.result(timeout=900)
        except (UllageError, CancelledError):
            continue
    _until(lambda: not any(_runs(number) for number in processes))


@each
def test_nobody_waits_for_work_that_comes_after_it_was_cancelled(opened: WorkEngine) -> None:
    """Layouts that were being looked at submit more when what they wait for is cancelled."""
    assert opened.submit(f"{WORK}:double", {"number": 1}).result()["number"] == 2
    opened.cancel()
    late = [opened.submit(f"{WORK}:double", {"number": number}) for number in range(2)]
    for future in late:
        with pytest.raises(EngineError, match="the search was cancelled"):
            future.result(timeout=900)


@pytest.mark.parametrize(
    ("on", "workers", "said"),
    [
        ("kubernetes", 1, "on='kubernetes' is not an engine; expected local, ray"),
        ("slurm:partition", 1, "is not an engine with settings"),
        ("slurm:time=soon", 1, "time is not a whole number of minutes"),
        ("local", 0, "workers=0 is out of range"),
    ],
)
def test_what_is_no_engine_is_a_sentence(on: str, workers: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_engine(on, workers=workers)


@pytest.mark.parametrize(("on", "extra"), [("ray", "ray"), ("slurm", "slurm")])
def test_what_is_not_installed_is_named(on: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, {"slurm": "submitit"}.get(on, on), None)
    with pytest.raises(UsageError, match=rf"is not installed: pip install 'ullage\[{extra}\]'"):
        open_engine(on)


def _until(condition: Callable[[], bool]) -> None:
    """Wait for something that has to come; a test that waits in vain is ended by hand."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not come")


def _runs(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
