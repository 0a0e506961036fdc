"""Options of the whole suite, and the signals and folders that its processes are born with."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.rotation import SLOW, CostWriter, QuickRun, leave_out_other_days, leave_out_other_turns

# Two threads for each process of two workers wait for each other by turning round: four times the processor's time for
# what is computed on the CPU. It is set before `tests.forked.client` reads the variables that its server begins with.
if not SLOW:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# What runs a command as a user does: `workplace` and `predict`.
pytest_plugins = ["tests.shared.commands"]

# How long an example takes says more of what else runs on the machine than of the code.
settings.register_profile("ullage", deadline=None)
settings.load_profile("ullage")

# Whoever starts the suite in the background of a script (`make test &`, nohup) gives it interrupts that are ignored,
# and every process that a test starts and interrupts would inherit that. A signal with a handler is not inherited so.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else lambda *_: None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this suite."""
    parser.addoption(
        "--all-records",
        action="store_true",
        help="compare every recorded workload of the installed torch, not only the default cards (tests/truth)",
    )
    parser.addoption("--all-turns", action="store_true", help="run costly tests too whose turn is on another day")
    parser.addoption(
        "--write-costs", action="store_true", help="the same, and write what each test takes (tests/costly_tests.json)"
    )
    parser.addoption("--quick", action="store_true", help="the shortest tests, for half a minute (tests/rotation.py)")


def pytest_configure(config: pytest.Config) -> None:
    """Note what tests take, in the process that hears of all of them; or look at the clock."""
    if config.getoption("--write-costs") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CostWriter())
    if config.getoption("--quick"):
        config.pluginmanager.register(QuickRun())


@pytest.hookimpl(tryfirst=True)  # before cases are chosen by name, so that a case's number is the same then
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is another day's (tests/rotation.py), unless a case is named whole."""
    if not any("[" in argument for argument in config.args):
        leave_out_other_days(items)
    is_whole = [Path(argument).resolve() for argument in config.args] == [Path(__file__).parent]
    if is_whole and not config.getoption("--all-turns") and not config.getoption("--write-costs"):
        leave_out_other_turns(items)


@pytest.fixture
def is_forked(request: pytest.FixtureRequest) -> bool:
    """Tell whether a test's processes may be forked from one that has torch in memory (tests/forked)."""
    return request.node.get_closest_marker("own_process") is None


@pytest.fixture(scope="session", autouse=True)
def cudnn_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what cuDNN answers in a folder of the session's, away from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ULLAGE_CUDNN_CACHE", str(tmp_path_factory.mktemp("cudnn")))
        yield
