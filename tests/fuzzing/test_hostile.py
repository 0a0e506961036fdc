"""Snapshots with odd names, stacks and archives take at most 20 times the time of an ordinary one of the same size."""

import pickle
from pathlib import Path

import pytest

from tests.fuzzing.hostile import COUNT, MOST_TIMES, all_measured, hostile, plain, times_of
from tests.rotation import SLOW, is_todays
from ullage.recorded.snapshot.snapshot import load_snapshot

SOME = range(16)
"""The snapshots that are read every day; of the next 112, a seventh is read each day."""


@pytest.mark.every_run
def test_a_snapshot_made_to_take_long_takes_a_bounded_time() -> None:
    numbers = range(COUNT) if SLOW else [*SOME, *(number for number in range(16, 128) if is_todays(number, 7))]
    slow = [
        f"{one.snapshot.number}: {one.snapshot.kind}, {one.command}: {one.times:.0f} times"
        for one in all_measured(numbers)
        if one.times > MOST_TIMES
    ]
    assert slow == []


def test_the_ordinary_snapshot_is_read_completely(tmp_path: Path) -> None:
    path = tmp_path / "plain.pickle"
    path.write_bytes(plain(200_000))
    assert 100_000 < path.stat().st_size < 400_000
    assert len(load_snapshot(path).devices[0].action) == len(pickle.loads(plain(200_000))["device_traces"][0])


def test_the_same_number_is_the_same_snapshot() -> None:
    assert hostile(7).data == hostile(7).data


@pytest.mark.parametrize("name", ["x" * 30_000, "Backward<" * 3_000, "aBackward<>::appl" * 2_000])
def test_a_long_function_name_takes_no_longer_than_other_bytes(name: str, tmp_path: Path) -> None:
    """A snapshot of 125 kB with such names took more than 2 minutes."""
    whole = pickle.loads(plain(60_000))
    for number, entry in enumerate(whole["device_traces"][0][::3]):
        entry["frames"] = [{"filename": "", "name": name, "line": number}, *entry["frames"]]
    assert times_of(pickle.dumps(whole), ("explain",), tmp_path)[1] < MOST_TIMES
