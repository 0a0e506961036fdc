"""When the peak counts as stable: the last step needs no more, or the last steps repeat a pattern."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shared.commands import Predict
from ullage.base.units import MIB
from ullage.predicting.prediction.data.prediction import Step
from ullage.predicting.prediction.measurement.trace import is_settled

# Larger than the tolerance, so that any two different levels differ.
LEVELS = st.integers(1000, 100_000)


def steps(peaks: list[int], ends: list[int] | None = None) -> list[Step]:
    """Steps with these peaks, in MiB. Reserved memory never shrinks, as without `empty_cache`."""
    reserved = [max(peaks[: number + 1]) for number in range(len(peaks))]
    return [
        Step(
            step=number + 1,
            peak_allocated_bytes=peak * MIB,
            peak_reserved_bytes=reserved[number] * MIB,
            end_allocated_bytes=(ends[number] if ends else 100) * MIB,
            oom=False,
            complete=True,
        )
        for number, peak in enumerate(peaks)
    ]


@given(LEVELS, st.lists(st.floats(1.002, 3), min_size=1, max_size=20))
def test_peaks_that_grow_are_never_stable(first: int, factors: list[float]) -> None:
    peaks = [first]
    for factor in factors:
        peaks.append(int(peaks[-1] * factor) + 1)
    for count in range(1, len(peaks) + 1):
        assert not is_settled(steps(peaks[:count]))


@given(st.lists(LEVELS, min_size=2, max_size=6), st.lists(LEVELS, max_size=3), st.integers(0, 5))
def test_a_pattern_is_stable_once_it_has_occurred_twice(pattern: list[int], before: list[int], more: int) -> None:
    """Whatever happened before the pattern, and at every step after the second occurrence."""
    peaks = before + 4 * pattern
    assert is_settled(steps(peaks[: len(before) + 2 * len(pattern) + more]))


def test_the_two_phases_of_a_gan_settle_after_the_step_that_creates_the_optimizers_state() -> None:
    peaks = [2000, 2021, 2100, 2121, 2100, 2121, 2100]
    found = [is_settled(steps(peaks[:count])) for count in range(1, 8)]
    assert found == [False, False, False, False, True, True, True]


@given(st.lists(LEVELS, min_size=2, max_size=12))
def test_the_last_step_of_a_stable_run_is_not_above_every_earlier_step(peaks: list[int]) -> None:
    if is_settled(steps(peaks)):
        assert peaks[-1] <= 1.001 * max(peaks[:-1])


@given(st.lists(LEVELS, min_size=2, max_size=12, unique=True))
def test_peaks_that_fall_are_stable(peaks: list[int]) -> None:
    assert is_settled(steps(sorted(peaks, reverse=True)))


def test_one_high_step_is_not_stable_until_the_next_step() -> None:
    assert not is_settled(steps([5, 5, 5, 9]))
    assert is_settled(steps([5, 5, 5, 9, 5]))


def test_growth_after_one_high_step_is_not_hidden_by_that_step() -> None:
    """A step that loads a checkpoint is above everything that follows, also above memory that grows."""
    for high in range(4):
        peaks = [1000, 1100, 1200, 1300, 1400, 1500, 1600, 1700]
        peaks[high] = 9000
        for count in range(high + 3, 9):
            assert not is_settled(steps(peaks[:count])), (high, count)


def test_a_pattern_on_top_of_growth_is_not_stable_when_it_reaches_its_high_step() -> None:
    peaks = [1000 + 50 * (number % 2) + 5 * number for number in range(12)]
    assert not any(is_settled(steps(peaks[:count])) for count in range(2, 13, 2))


def test_a_pattern_whose_steps_keep_more_and_more_is_not_stable() -> None:
    """The peaks repeat, and the memory between the steps grows."""
    pattern = [2100, 2048] * 4
    assert is_settled(steps(pattern, [100, 90] * 4))
    assert not is_settled(steps(pattern, [100 + 10 * number for number in range(8)]))


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_stable_only_where_no_step_is_the_highest_so_far(seed: int) -> None:
    peaks = [random.Random(seed).randrange(1000, 2000) for _ in range(9)]
    for count in range(2, 10):
        if peaks[count - 1] > 1.001 * max(peaks[: count - 1]):
            assert not is_settled(steps(peaks[:count]))


ALTERNATES = """
import torch
model = torch.nn.Linear(512, 512, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())
for step in range(40):
    optimizer.zero_grad()
    model(torch.ones(4000 if step % 2 else 4200, 512, device="cuda")).tanh().sum().backward()
    optimizer.step()
"""


@pytest.mark.own_process
def test_a_script_whose_batches_alternate(predict: Predict, workplace: Path) -> None:
    """The last of five steps is above the step before it, and as high as the third."""
    (workplace / "alternates.py").write_text(ALTERNATES)
    ended = predict(workplace / "alternates.py", "--json", "--steps", "5")
    assert ended.code == 0, ended.error
    peaks = [step["peak_allocated_bytes"] for step in ended.json["steps"]]
    assert peaks[1] == peaks[3] < peaks[2] == peaks[4]
    assert ended.json["settled"]
