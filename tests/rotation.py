"""What takes longest in the suite runs in turns, so that each case runs within a week; with ULLAGE_SLOW all of it does.

Large families of cases have the marker `by_day(every)`: a part of them runs each day, wherever they are asked for. What
takes half a second or more by itself stands with its seconds in costly_tests.json (`make costs` writes it): in a run of
the whole suite it is the turn of one in seven of them, on days that take about as long as each other. A test that
is not in the file yet, or has the marker `every_run`, runs every day. With `--quick` the shortest run first, and what
is left after half a minute does not run.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Final

import pytest

SLOW: Final = "ULLAGE_SLOW" in os.environ
WEEK_DAYS: Final = 7
LEFT_OUT: Final = "another day's; make slow runs all"
QUICK_SECONDS: Final = 30
NO_TIME_LEFT: Final = f"the {QUICK_SECONDS} seconds of --quick have passed"
TURNS: Final = WEEK_DAYS
COSTS: Final = Path(__file__).parent / "costly_tests.json"
COSTLY_SECONDS: Final = 0.5


def is_todays(number: int, every: int, today: date | None = None) -> bool:
    """Tell whether the case with a number is one of today's, where one of `every` runs each day."""
    assert every <= WEEK_DAYS, "each case has to run within a week"
    return SLOW or number % every == (today or date.today()).toordinal() % every


def leave_out_other_days(items: Sequence[pytest.Item]) -> None:
    """Skip the cases of each test with the marker `by_day(every)` that are another day's."""
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("by_day")
        if marker is None:
            continue
        family = item.nodeid.partition("[")[0]
        if not is_todays(seen[family], *marker.args):
            item.add_marker(pytest.mark.skip(reason=LEFT_OUT))
        seen[family] += 1


def turns_of(costs: Mapping[str, float], turns: int = TURNS) -> dict[str, int]:
    """Give each test a turn, so that all turns take about as long: the longest first, to the turn with least so far."""
    filled = [0.0] * turns
    found = {}
    for name, seconds in sorted(costs.items(), key=lambda each: (-each[1], each[0])):
        found[name] = filled.index(min(filled))
        filled[found[name]] += seconds
    return found


def leave_out_other_turns(items: Sequence[pytest.Item], today: date | None = None) -> None:
    """Skip what takes long and has its turn on another day."""
    turns = turns_of(json.loads(COSTS.read_text()))
    now = (today or date.today()).toordinal() % TURNS
    for item in items:
        if not SLOW and turns.get(item.nodeid, now) != now and not item.get_closest_marker("every_run"):
            item.add_marker(pytest.mark.skip(reason=LEFT_OUT))


class QuickRun:
    """Runs the shortest tests first, and skips what does not end within `QUICK_SECONDS`: a plugin of pytest."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._costs = json.loads(COSTS.read_text())

    @pytest.hookimpl(trylast=True)  # after cases have their numbers
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put what takes long behind the rest, which keeps its order."""
        items.sort(key=lambda item: self._costs.get(item.nodeid, 0))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip a test that would end too late."""
        if time.monotonic() - self._begun + self._costs.get(item.nodeid, 0) > QUICK_SECONDS:
            pytest.skip(NO_TIME_LEFT)


class CostWriter:
    """Writes what took half a second or more in this run: a plugin of pytest."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add what a test took; what its fixtures take is often shared, and told of the first test alone."""
        if report.when == "call" and report.passed:
            self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write the seconds of each costly test."""
        costly = {name: round(each, 1) for name, each in self._seconds.items() if each >= COSTLY_SECONDS}
        COSTS.write_text(json.dumps(costly, indent=0, sort_keys=True) + "\n")
