"""Rules of the live file: whatever moment a process is stopped at, what it has written is read as it was written."""

import contextlib
import errno
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.running.run_files.facts import Arming, RunCard, RunFacts, RunPeak
from ullage.running.run_files.live import BINS, RECENT, LiveFileError, LiveWriter, Sample, read_live


def _sample(step: int, peak: int = 0, device: int = 0) -> Sample:
    return Sample(step, 1.5 * step, device, 10 * step, 20 * step, peak or 30 * step, -1, 3, 1, 0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3 * RECENT), st.integers(0, 2**32))
def test_what_was_added_is_read(tmp_path_factory: pytest.TempPathFactory, count: int, seed: int) -> None:
    """The latest samples as they are; in the overview no peak of the whole run is missing, nor is any made up."""
    path = tmp_path_factory.mktemp("live") / "process-1.live"
    writer, chance = LiveWriter(path), random.Random(seed)
    samples = [_sample(step, peak=chance.randrange(1 << 40)) for step in range(1, count + 1)]
    for sample in samples:
        writer.add(sample)
    live = read_live(path)
    assert live.samples == count
    assert list(live.recent) == samples[-len(live.recent) :] if samples else live.recent == ()
    assert len(live.recent) >= min(count, RECENT - 1)
    assert len(live.overview) <= BINS
    assert max((one.peak_bytes for one in live.overview), default=0) == max(
        (one.peak_bytes for one in samples), default=0
    )
    assert {one.peak_bytes for one in live.overview} <= {one.peak_bytes for one in samples}
    assert [one.step for one in live.overview] == sorted(one.step for one in live.overview)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3 * RECENT), st.integers(1, 9), st.integers(0, 2**32))
def test_a_bin_is_of_one_device(tmp_path_factory: pytest.TempPathFactory, count: int, devices: int, seed: int) -> None:
    """However samples of devices alternate: each has its own peak, its own highest reserved, and its share of bins."""
    path = tmp_path_factory.mktemp("live") / "process-1.live"
    writer, chance = LiveWriter(path), random.Random(seed)
    samples = [
        _sample(step, peak=chance.randrange(1 << 40), device=chance.randrange(devices)) for step in range(1, count + 1)
    ]
    for sample in samples:
        writer.add(sample)
    live = read_live(path)
    assert len(live.overview) <= BINS
    assert list(live.overview) == writer.overview()
    counts = [sum(one.device == device for one in samples) for device in range(devices)]
    width = next(2**k for k in range(9) if sum(-(-number // 2**k) for number in counts) <= BINS)
    for device in range(devices):
        own = [one for one in samples if one.device == device]
        bins = [one for one in live.overview if one.device == device]
        assert len(bins) == -(-len(own) // width)  # each of them is full but the last
        assert max((one.peak_bytes for one in bins), default=0) == max((one.peak_bytes for one in own), default=0)
        assert max((one.reserved_bytes for one in bins), default=0) == max(
            (one.reserved_bytes for one in own), default=0
        )
        assert {(one.step, one.peak_bytes) for one in bins} <= {(one.step, one.peak_bytes) for one in own}
        assert [one.step for one in bins] == sorted(one.step for one in bins)


@pytest.mark.parametrize(
    ("count", "since", "most"), [(10, 4, 3), (10, 4, 100), (10, 12, 5), (9000, 8990, 4096), (9000, 0, 7)]
)
def test_only_what_is_asked_for_is_read(tmp_path: Path, count: int, since: int, most: int) -> None:
    """The samples from a number on, or the latest so many; and they are numbered."""
    path = tmp_path / "process-1.live"
    writer = LiveWriter(path)
    for step in range(count):
        writer.add(_sample(step))
    live = read_live(path, since=since, most=most, overview=False)
    expected = list(range(count))[max(since, count - most) :]
    assert [one.step for one in live.recent] == expected
    assert live.first == (expected[0] if expected else count)
    assert live.overview == ()
    assert len(read_live(path, since=since, most=most).overview) > 0


def test_a_sample_that_is_overwritten_meanwhile_is_not_read(tmp_path: Path) -> None:
    """Reading again and again from where the last reading ended gives every sample once, or its loss shows."""
    path = tmp_path / "process-1.live"
    code = (
        "import sys; from pathlib import Path; from ullage.running.run_files.live import *\n"
        "writer = LiveWriter(Path(sys.argv[1]))\n"
        "for step in range(60_000):\n"
        "    if step == 100: input()\n"
        "    writer.add(Sample(step, 0.0, 0, step, step, step, -1, 0, 0, 0))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE)
    assert process.stdin is not None
    seen, lost, readings = 0, 0, 0
    is_over = False
    while not is_over:
        is_over = process.poll() is not None
        with contextlib.suppress(LiveFileError, FileNotFoundError):
            live = read_live(path, since=seen, overview=False)
            assert [one.step for one in live.recent] == list(range(live.first, live.samples))
            lost += live.first - seen
            seen, readings = live.samples, readings + bool(live.recent)
        if seen == 100 and not process.stdin.closed:
            process.stdin.write(b"\n")
            process.stdin.close()
        if readings % 3 == 0:
            time.sleep(0.15)  # slower than the ring is long: what is oldest is being overwritten
    assert (process.wait(), seen) == (0, 60_000)
    assert readings > 1
    assert lost < 60_000


def test_the_file_has_one_size_from_its_beginning(tmp_path: Path) -> None:
    """However long the run is, and however much is told."""
    path = tmp_path / "process-1.live"
    writer = LiveWriter(path)
    size = path.stat().st_size
    assert path.stat().st_blocks * 512 >= size  # its room is taken: a full disk cannot end the process later
    for step in range(3 * BINS * 4):
        writer.add(_sample(step))
    writer.write_facts({"pid": 1, "growth": ["x" * 100_000], "host": "here"})
    assert path.stat().st_size == size
    assert read_live(path).facts == {"pid": 1, "host": "here"}


def test_facts_are_read_as_they_were_told(tmp_path: Path) -> None:
    """Also where a later version has told more, or another form of something."""
    facts = RunFacts(
        pid=7,
        command=("python", "train.py"),
        host="here",
        started=1.0,
        told=2.0,
        rank=3,
        cards=(RunCard(index=0, name="T4", uuid="GPU-1", total_bytes=5, limit_bytes=4),),
        peaks=(RunPeak(bytes=3, device=0, step=2, line="train.py:3"),),
        arming=Arming(is_on=True, why="near", since_step=2, entries=10, budget_bytes=100),
        roles={"parameters": 12},
        growth=("leak",),
    )
    path = tmp_path / "rank3-7.live"
    LiveWriter(path).write_facts(facts.to_json() | {"unheard": [1]})
    assert RunFacts.from_json(read_live(path).facts) == facts
    odd = RunFacts.from_json(
        {"pid": "x", "rank": "one", "cards": [{"index": 1}], "roles": [], "steps": None, "state": 3}
    )
    assert (odd.pid, odd.rank, odd.cards, odd.roles, odd.steps, odd.state) == (0, None, (), {}, 0, "runs")


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"ULLAGE\x01\n", os.urandom(1 << 16)])
def test_a_file_of_somebody_else_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "process-1.live"
    path.write_bytes(content)
    with pytest.raises(LiveFileError, match="is not a live file"):
        read_live(path)


def test_damaged_content_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    """No byte of it can end the reader, or make it read beyond the file."""
    path = tmp_path / "process-1.live"
    writer = LiveWriter(path)
    writer.write_facts({"pid": 1})
    whole, chance = path.read_bytes(), random.Random(1)
    for _ in range(200):
        damaged = bytearray(whole)
        for place in (chance.randrange(8, 4200) for _ in range(8)):
            damaged[place] = chance.randrange(256)
        path.write_bytes(damaged)
        RunFacts.from_json(read_live(path).facts)


def _has_begun(path: Path) -> bool:
    try:
        return read_live(path).samples > 10
    except (LiveFileError, FileNotFoundError):  # it is just being made
        return False


def test_what_a_killed_process_has_written_stays(tmp_path: Path) -> None:
    """It writes as fast as it can and is killed at some moment."""
    path = tmp_path / "process-1.live"
    code = (
        "import sys; from pathlib import Path; from ullage.running.run_files.live import *\n"
        "writer, step = LiveWriter(Path(sys.argv[1])), 0\n"
        "while True:\n"
        "    step += 1; writer.add(Sample(step, 0.0, 0, step, step, step, -1, 0, 0, 0))\n"
        "    writer.write_facts({'steps': step})\n"
    )
    for _ in range(3):
        path.unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-c", code, str(path)])
        try:
            while not _has_begun(path):
                time.sleep(0.01)
            time.sleep(0.1 * random.random())
        finally:
            process.kill()
            process.wait()
        live = read_live(path)
        assert live.samples > 10
        steps = [one.step for one in live.recent]
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        assert live.facts == {} or abs(live.facts["steps"] - steps[-1]) <= 1


def test_without_room_nothing_is_left(tmp_path: Path) -> None:
    """A disk that is full says so when the file is made, not in the middle of a training."""
    path, before = tmp_path / "process-1.live", resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"too large|No space") as refused:
            LiveWriter(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert refused.value.errno in (errno.EFBIG, errno.ENOSPC)
    assert not path.exists()
