"""Large families of cases: a part of them each day, so that each runs within a week; with ULLAGE_SLOW all of them."""

import os
from collections import Counter
from collections.abc import Sequence
from datetime import date
from typing import Final

import pytest

SLOW: Final = "ULLAGE_SLOW" in os.environ
WEEK_DAYS: Final = 7
LEFT_OUT: Final = "another day's; make slow runs all"


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
