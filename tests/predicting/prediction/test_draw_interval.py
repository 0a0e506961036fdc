"""The interval of draws holds what it says: one more run of the same kind, in 95 of 100 cases."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.predicting.prediction.verdict.draw_interval import interval_of_draws, interval_of_peaks


@pytest.mark.parametrize("count", [2, 3, 5, 10, 40])
def test_one_more_run_lies_inside_in_95_of_100_cases(count: int) -> None:
    numbers = random.Random(count)
    cases, inside = 4000, 0
    for _ in range(cases):
        *draws, more = (numbers.lognormvariate(20, 0.05) for _ in range(count + 1))
        low, high = interval_of_draws(draws)
        inside += low <= more <= high
    # Three standard deviations of a share of 95 % in so many cases are 1 %; above 30 draws it is a little wider.
    assert 0.94 <= inside / cases <= 0.97


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=8))
def test_it_holds_what_was_given(figures: list[int]) -> None:
    low, high = interval_of_draws(figures)
    assert 0 <= low <= min(figures) <= max(figures) <= high


@given(st.integers(0, 1 << 40), st.integers(1, 5))
def test_runs_that_agree_leave_no_interval(figure: int, count: int) -> None:
    assert interval_of_draws([figure] * count) == (figure, figure)


def test_the_interval_of_peaks_is_wider_than_that_of_draws() -> None:
    low, high = interval_of_draws([1000, 1010, 1020])
    assert interval_of_peaks([1000, 1010, 1020]) == pytest.approx((low * 0.995, high * 1.005))
    assert interval_of_peaks([1000]) == pytest.approx((995, 1005))
