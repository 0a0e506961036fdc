"""What history cost is told only where it can be."""

from itertools import accumulate

import pytest

from ullage.running.run_files.facts import Arming
from ullage.running.run_files.live import Sample
from ullage.running.supervision.summary import measured_cost


def _samples(seconds: list[float]) -> list[Sample]:
    """One for the end of each step, and one within each: a sample a second, where steps are long."""
    ends = list(accumulate(seconds, initial=1000.0))
    return [
        Sample(step, time + late, 0, 1, 1, 1, -1, 0, 0, 0) for step, time in enumerate(ends) for late in (0.0, 0.001)
    ]


def _arming(since_step: int, *, is_on: bool = True) -> Arming:
    return Arming(is_on=is_on, why="memory grows", since_step=since_step, entries=1, budget_bytes=1)


CALM = [0.1, 0.101, 0.099, 0.1, 0.102]


@pytest.mark.parametrize("is_on", [True, False])
def test_a_clear_difference_is_told(is_on: bool) -> None:
    """Steps of a tenth of a second, and steps of half as much more: with history, or before it was switched off."""
    slower = [1.5 * seconds for seconds in CALM]
    seconds = CALM * 4 + slower * 4 if is_on else slower * 4 + CALM * 4
    assert measured_cost(_samples(seconds), _arming(20, is_on=is_on), 0) == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize(
    ("seconds", "since"),
    [
        pytest.param(CALM + [0.15] * 40, 5, id="too few steps before"),
        pytest.param([0.1] * 40 + [0.15] * 5, 40, id="too few steps after"),
        pytest.param(CALM * 8, 20, id="no difference"),
        pytest.param([0.1, 0.2, 0.15, 0.12] * 5 + [0.2, 0.12, 0.19, 0.17] * 5, 20, id="within what steps vary"),
        pytest.param([0.1 + 0.01 * step for step in range(40)], 20, id="steps that become longer"),
    ],
)
def test_noise_is_not_told(seconds: list[float], since: int) -> None:
    assert measured_cost(_samples(seconds), _arming(since), 0) is None


def test_of_another_device_nothing_is_told() -> None:
    assert measured_cost(_samples(CALM * 4 + [0.2] * 20), _arming(20), 1) is None
