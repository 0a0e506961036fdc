"""The search of one layout against trying everything, over needs that somebody has made up."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from ullage.predicting.fitting.axis import Axis
from ullage.predicting.fitting.search import ProbedNeed
from ullage.predicting.layouts.layout_search import LayoutSearch, Trial

BUDGET = 1000


@given(
    bases=st.lists(st.integers(0, 1500), min_size=1, max_size=4),
    slopes=st.lists(st.integers(1, 400), min_size=4, max_size=4),
    high=st.integers(1, 64),
    fails_from=st.integers(1, 80),
    start=st.lists(st.integers(1, 64), max_size=2),
)
def test_it_is_the_largest_that_every_rank_fits_with(
    bases: list[int], slopes: list[int], high: int, fails_from: int, start: list[int]
) -> None:
    ran: list[Trial] = []

    def need(value: int, rank: int) -> int:
        return bases[rank] + slopes[rank] * value

    def run(trials: Sequence[Trial]) -> Mapping[Trial, ProbedNeed]:
        ran.extend(trials)
        return {
            (value, rank): ProbedNeed(
                high_bytes=None if need(value, rank) > BUDGET or value >= fails_from else need(value, rank),
                fits=need(value, rank) <= BUDGET and value < fails_from,
            )
            for value, rank in trials
        }

    ranks = range(len(bases))
    search = LayoutSearch(ranks=ranks, axis=Axis(option="--n", low=1, high=high), budget_bytes=BUDGET, start=start)
    search.run(run)
    fitting = [
        value
        for value in range(1, high + 1)
        if value < fails_from and all(need(value, rank) <= BUDGET for rank in ranks)
    ]
    assert search.best == max(fitting, default=None)
    assert search.next == (None if len(fitting) == high else len(fitting) + 1)
    assert len(ran) == len(set(ran)), "nothing is run twice"
    if fitting:  # it is proved: every rank was run with it
        assert {(fitting[-1], rank) for rank in ranks} <= set(ran)


def test_a_value_that_does_not_fit_costs_one_run() -> None:
    ran: list[Trial] = []

    def run(trials: Sequence[Trial]) -> Mapping[Trial, ProbedNeed]:
        ran.extend(trials)
        # The last rank uses most.
        return {
            (value, rank): ProbedNeed(high_bytes=value * 10 + rank, fits=value * 10 + rank <= BUDGET)
            for value, rank in trials
        }

    search = LayoutSearch(ranks=[0, 8, 56], axis=Axis(option="--n", low=1, high=4096), budget_bytes=BUDGET)
    search.run(run)
    assert search.best == (BUDGET - 56) // 10
    unfit = {value for value, rank in ran if value * 10 + 56 > BUDGET}
    assert unfit
    assert all([rank for value, rank in ran if value == each] == [56] for each in unfit)


def test_without_an_option_what_is_given_is_run() -> None:
    needs = {0: 10, 4: 2000}

    def run(trials: Sequence[Trial]) -> Mapping[Trial, ProbedNeed]:
        return {trial: ProbedNeed(high_bytes=needs[trial[1]], fits=needs[trial[1]] <= BUDGET) for trial in trials}

    search = LayoutSearch(ranks=[0, 4], axis=None, budget_bytes=BUDGET)
    search.run(run)
    assert (search.best, search.next) == (None, 0)
