"""A file of which not all can be true is told as that, in one line, and nothing is concluded from it."""

import gzip
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ullage
from tests.forked import client
from tests.running.export.test_database import late
from ullage.base.errors import UsageError
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.contradiction import contradiction_of
from ullage.recorded.rebuild import program_of
from ullage.recorded.snapshot.snapshot import SnapshotError, load_snapshot

MIB = 1 << 20
DATA = Path(__file__).parents[2] / "snapshots"
BASE = 0x7F0000000000
FAR = BASE + (1 << 40)
FRAMES = [{"filename": "/project/train.py", "line": 3, "name": "step"}]


def entry(action: str, address: int, size: Any, **more: Any) -> dict[str, Any]:
    place = "device_free" if action == "oom" else "addr"
    return {"action": action, "size": size, "stream": 0, "time_us": 1, "frames": FRAMES, place: address, **more}


def freed(address: int, size: int) -> list[dict[str, Any]]:
    return [entry(what, address, size) for what in ("free_requested", "free_completed")]


def block(address: int, size: int, state: str = "active_allocated", **more: Any) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": FRAMES, **more}


def segment(address: int, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "device": 0,
        "address": address,
        "total_size": sum(part["size"] for part in blocks),
        "stream": 0,
        "segment_type": "large",
        "is_expandable": False,
        "blocks": list(blocks),
        **more,
    }


HELD = [segment(BASE, block(BASE, 100 * MIB))]
MADE = [entry(what, BASE, 100 * MIB) for what in ("segment_alloc", "alloc")]


def written(folder: Path, segments: list[dict[str, Any]], trace: list[dict[str, Any]]) -> Path:
    path = folder / "snapshot.pickle"
    # One after the other, so that equal entries are not one and the same.
    traces = [dict(each) for each in trace]
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [traces]}))
    return path


@pytest.mark.parametrize("is_late", [False, True], ids=["whole", "late"])
@pytest.mark.parametrize("file", sorted(DATA.glob("*.pickle.gz")), ids=lambda path: path.name.partition(".")[0])
def test_recordings_of_pytorch_contradict_nothing(file: Path, *, is_late: bool) -> None:
    history = load_snapshot(file).devices[0]
    history = late(history) if is_late else history
    assert contradiction_of(history, program_of(history), is_exact=False) is None


def test_what_contradicts_nothing_is_read(tmp_path: Path) -> None:
    assert ullage.explain(written(tmp_path, HELD, MADE)).cause is Cause.DID_NOT_FAIL


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ([segment(BASE, block(BASE, 60 * MIB), total_size=100 * MIB)], "its blocks have 62,914,560 of them together"),
        ([segment(BASE, block(BASE, 60 * MIB), total_size=10 * MIB)], "has 10,485,760 bytes, but its blocks"),
        ([segment(BASE, block(BASE, 60 * MIB), block(BASE + 30 * MIB, 40 * MIB))], "overlap at"),
        ([segment(BASE, block(BASE, MIB)), segment(BASE + MIB // 2, block(BASE + MIB // 2, MIB))], "and .* overlap"),
        (
            [segment(BASE, block(BASE, MIB, requested_size=9 * MIB))],
            "smaller than the bytes that were requested for it",
        ),
        ([segment(BASE, block(BASE, 0))], "has 0 bytes"),
    ],
)
def test_a_state_that_cannot_be(tmp_path: Path, segments: list[dict[str, Any]], said: str) -> None:
    path = written(tmp_path, segments, [])
    for command in (ullage.explain, ullage.tune, load_snapshot):
        with pytest.raises(SnapshotError, match=f"{path.name}: the file contradicts itself: .*{said}"):
            command(path)
    with pytest.raises(SnapshotError, match="the file contradicts itself"):
        ullage.diff(path, path)


@pytest.mark.parametrize("size", [0, "many", None])
def test_a_failure_of_no_size_is_no_figure(tmp_path: Path, size: Any) -> None:
    path = written(tmp_path, HELD, [*MADE, entry("oom", 0, size)])
    with pytest.raises(SnapshotError, match="the file contradicts itself: entry 2, oom, has 0 bytes"):
        ullage.explain(path)


@pytest.mark.parametrize("size", [1 << 63, (1 << 64) - 1, -5, 1 << 62])
def test_a_failure_of_any_size_has_no_negative_figure(tmp_path: Path, size: int) -> None:
    explanation = ullage.explain(written(tmp_path, HELD, [*MADE, entry("oom", 0, size)]))
    assert explanation.cause is Cause.BOGUS_SIZE
    assert "2^62 bytes or more" in explanation.sentence
    assert min(explanation.evidence.values()) >= 0
    assert "-" not in explanation.sentence


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        (freed(FAR, 5 * MIB), "the block of entry 2, free_requested of 5.0 MiB, is outside all segments"),
        ([entry("alloc", FAR, MIB)], "the block of entry 2, alloc of 1.0 MiB, is outside all segments"),
        ([entry("alloc", BASE, 100 * MIB)], "entry 2 allocates a block that is already allocated"),
        ([entry("alloc", BASE + MIB, 10 * MIB)], "entry 2 allocates memory that the block of entry 1 still occupies"),
        (freed(BASE, 100 * MIB) + freed(BASE, 100 * MIB), "entry 4 frees a block that is already free"),
        (freed(BASE, 5 * MIB), "entry 2 frees a block with a size other than the allocated size"),
        ([entry("segment_alloc", BASE + MIB, MIB)], "the segment of entry 2 overlaps an existing segment"),
        ([*freed(BASE, 100 * MIB), entry("alloc", BASE, 300 * MIB)], "extends beyond its segment"),
    ],
)
def test_a_trace_that_cannot_be(tmp_path: Path, trace: list[dict[str, Any]], said: str) -> None:
    path = written(tmp_path, HELD, [*MADE, *trace])
    explanation = ullage.explain(path)
    assert explanation.cause is Cause.CANNOT_TELL
    assert "The file contradicts itself: " in explanation.sentence
    assert said in explanation.sentence
    assert explanation.remedies == ()
    for command in (ullage.tune, lambda file: ullage.repro(file, output=tmp_path / "script.py")):
        with pytest.raises(UsageError, match="the file contradicts itself"):
            command(path)


@pytest.mark.parametrize("plain", [[[1, 2]], {"segments": [{**HELD[0], "blocks": [3]}]}, [{"blocks": 3}]])
def test_a_structure_that_is_none_is_told_without_the_words_of_python(tmp_path: Path, plain: Any) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(plain))
    with pytest.raises(SnapshotError, match="cannot be read as a snapshot") as refused:
        load_snapshot(path)
    assert "Error" not in str(refused.value)
    assert "object" not in str(refused.value)


def drawn(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ullage", "explain", str(path), *options]
    return client.run(line)


def test_names_of_any_length_are_shown_shortened(tmp_path: Path) -> None:
    long = [{"filename": f"/project/{'x' * 100_000}.py", "line": 3, "name": "y" * 100_000}]
    trace = [{**each, "frames": long} for each in [*MADE, entry("oom", 0, 50 * MIB)]]
    path = written(tmp_path, [segment(BASE, block(BASE, 100 * MIB, frames=long))], trace)
    for options in ((), ("--all",), ("--json",)):
        done = drawn(path, *options)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout) < 20_000
    page = tmp_path / "page.html"
    drawn(path, "--html", str(page))
    assert b"x" * 1000 not in page.read_bytes()


def test_where_no_stack_was_recorded_no_line_is_named(tmp_path: Path) -> None:
    trace = [{**each, "frames": []} for each in [*MADE, entry("oom", 0, 50 * MIB)]]
    path = written(tmp_path, [segment(BASE, block(BASE, 100 * MIB, frames=[]))], trace)
    assert ullage.explain(path).failing_line is None
    said = drawn(path).stdout
    assert "at (no stack" not in said
    assert "of at most 0 B" not in said, "nothing is cached"


@pytest.mark.parametrize("name", ["empty.log", "empty.pickle"])
def test_an_empty_file_is_called_empty(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    with pytest.raises(UsageError, match=f"{name} is empty; expected a snapshot, a log or an error's text"):
        ullage.explain(path)
    done = subprocess.run(
        [sys.executable, "-m", "ullage", "explain", "-"], input="", capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "standard input is closed or empty" in done.stderr


@pytest.mark.parametrize("arguments", ["explain {file}", "explain {file} --json", "explain {log}", "--help", "bogus"])
def test_a_reader_that_has_gone_ends_it_as_other_programs(tmp_path: Path, arguments: str) -> None:
    """Its output and its errors go into a pipe that nobody reads, as with 2>&1 | head -c 0."""
    log = tmp_path / "empty.log"
    log.touch()
    path = written(tmp_path, HELD, MADE)
    read, write = os.pipe()
    os.close(read)
    line = [sys.executable, "-m", "ullage", *arguments.format(file=path, log=log).split()]
    try:
        done = subprocess.run(line, stdout=write, stderr=write, check=False)
    finally:
        os.close(write)
    assert done.returncode == 128 + signal.SIGPIPE


def test_entries_in_another_order_are_told_as_that(tmp_path: Path) -> None:
    """Of a trace that was turned round, what was given back last seems to have been there first."""
    plain = pickle.loads(gzip.decompress((DATA / "oom.pickle.gz").read_bytes()))
    turned = [trace[::-1] for trace in plain["device_traces"]]
    path = tmp_path / "turned.pickle"
    path.write_bytes(pickle.dumps({**plain, "device_traces": turned}))
    with pytest.raises(
        UsageError, match=r"^the file contradicts itself: .* not in the order in which they were written$"
    ):
        ullage.explain(path)
