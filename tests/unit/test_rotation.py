"""Of a large family each case runs within a week, and a part of it each day."""

from datetime import date, timedelta

import pytest

from tests import rotation
from tests.rotation import is_todays


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
