"""Of a large family each case runs within a week, and a part of it each day."""

import itertools
import json
from contextlib import suppress
from datetime import date, timedelta
from types import SimpleNamespace

import pytest

from tests import rotation
from tests.rotation import COSTS, TURNS, is_todays, turns_of

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("every", [1, 3, 5, 7])
def test_each_case_runs_within_a_week(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "SLOW", False)
    first = date(2026, 12, 28)  # over the end of a year
    days = [first + timedelta(days=number) for number in range(7)]
    run = [{number for number in range(203) if is_todays(number, every, day)} for day in days]
    assert set().union(*run) == set(range(203))
    assert all(len(each) in (203 // every, 203 // every + 1) for each in run)


def test_what_would_not_run_within_a_week_is_refused() -> None:
    with pytest.raises(AssertionError, match="within a week"):
        is_todays(0, 8)


def test_what_takes_long_runs_within_a_week_on_days_of_like_length() -> None:
    costs = json.loads(COSTS.read_text())
    turns = turns_of(costs)
    assert turns.keys() == costs.keys()
    assert TURNS <= 7
    lengths = [sum(costs[name] for name, turn in turns.items() if turn == day) for day in range(TURNS)]
    assert max(lengths) - min(lengths) <= max(costs.values())


def test_quick_runs_the_shortest_first_until_its_time_has_passed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_some="\n".join(f"def test_{name}(): ..." for name in ("longest", "long", "new", "short")))
    items, _ = pytester.inline_genitems("-p", "no:cacheprovider")
    costs = pytester.path / "costs.json"
    seconds = {"longest": 25.0, "long": 8.0, "short": 6.0}
    costs.write_text(json.dumps({f"test_some.py::test_{name}": cost for name, cost in seconds.items()}))
    monkeypatch.setattr(rotation, "COSTS", costs)
    clock = itertools.count(100, 7)
    monkeypatch.setattr(rotation, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    quick = rotation.QuickRun()
    quick.pytest_collection_modifyitems(items)
    assert [item.name for item in items] == ["test_new", "test_short", "test_long", "test_longest"]
    ran = []
    for item in items:
        with suppress(pytest.skip.Exception):
            quick.pytest_runtest_setup(item)
            ran.append(item.name)
    assert ran == ["test_new", "test_short", "test_long"]


def test_what_is_not_known_to_take_long_runs_every_day(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_some="def test_new(): ...\n\ndef test_long(): ...\n")
    items, _ = pytester.inline_genitems("-p", "no:cacheprovider")
    with pytest.MonkeyPatch.context() as patch:
        costs = pytester.path / "costs.json"
        costs.write_text(json.dumps({"test_some.py::test_long": 7.5}))
        patch.setattr(rotation, "COSTS", costs)
        patch.setattr(rotation, "SLOW", False)
        days = [date(2026, 12, 28) + timedelta(days=number) for number in range(7)]
        left = []
        for day in days:
            for item in items:
                item.own_markers.clear()
            rotation.leave_out_other_turns(items, day)
            left.append([item.name for item in items if item.get_closest_marker("skip")])
    assert all(each in ([], ["test_long"]) for each in left)
    assert 1 <= left.count([]) <= 2, "once in a week"
