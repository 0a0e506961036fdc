"""Steps, peaks and the curve out of a journal."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ullage.predicting.prediction.measurement.trace import Levels, steps_of, timeline_of


def levels(values: list[int]) -> Levels:
    column = np.array(values, np.int64)
    return Levels(index=np.arange(len(values)), allocated=column, reserved=column * 2)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.data())
def test_a_step_peaks_at_its_highest_level_the_one_it_began_with_included(
    values: list[int], data: st.DataObject
) -> None:
    ends = sorted(set(data.draw(st.lists(st.integers(0, len(values) - 1), min_size=1, max_size=5))))
    reserved = [values[end] * 2 for end in ends]
    steps = steps_of(levels(values), ends, reserved, [], len(values))
    start, carried = 0, 0
    for step, end in zip(steps, ends, strict=True):
        expected = max([carried, *values[start : end + 1]])
        assert step.peak_allocated_bytes == expected
        assert step.complete
        assert not step.oom
        start, carried = end + 1, values[end]


def test_a_step_cut_short_by_an_error_is_a_step_of_its_own() -> None:
    first, last = steps_of(levels([1, 5, 3, 9]), [2], [6], [3], 4)
    assert (first.oom, first.complete) == (False, True)
    assert (last.oom, last.complete, last.peak_allocated_bytes) == (True, False, 9)


def test_an_empty_cache_lowers_the_reserved_memory_that_the_next_step_begins_with() -> None:
    steps = steps_of(levels([5, 1, 1]), [1, 2], [2, 2], [], 3)
    assert [step.peak_reserved_bytes for step in steps] == [10, 2]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=500))
def test_the_curve_keeps_the_peak(values: list[int]) -> None:
    curve = timeline_of(levels(values), [len(values) - 1])
    assert max(curve["allocated_bytes"]) == max(values)
    assert curve["step_ends"] == [len(curve["allocated_bytes"]) - 1]
