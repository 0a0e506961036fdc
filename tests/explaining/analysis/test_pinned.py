"""Pinned host memory in a snapshot, which torch 2.14 and later record."""

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest

from ullage.explaining.analysis.describe import describe
from ullage.explaining.analysis.explain import explain
from ullage.explaining.analysis.pinned import PinnedUse, pinned_use_of
from ullage.recorded.snapshot.snapshot import SnapshotError, load_snapshot
from ullage.report.report import Shares

DATA = Path(__file__).parents[2] / "snapshots"
MIB = 1 << 20
FRAMES = [{"name": "load", "filename": "/home/user/train.py", "line": 7}]


def block(size: int, *, is_used: bool) -> dict[str, Any]:
    state, frames = ("active_allocated", FRAMES) if is_used else ("inactive", [])
    plain = {"address": size, "size": size, "requested_size": size, "state": state, "frames": frames}
    return {"device": -1, "address": size, "total_size": size, "stream": 0, "blocks": [plain], "frames": frames}


def use_of(tmp_path: Path, segments: list[Any], traces: list[Any]) -> PinnedUse | None:
    content = {"segments": [], "device_traces": [[]], "host_segments": segments, "host_traces": traces}
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(content))
    return pinned_use_of(load_snapshot(tmp_path / "a.pickle").devices[0])


def test_what_is_used_and_what_is_cached(tmp_path: Path) -> None:
    sizes = ((16, "segment_alloc"), (16, "alloc"), (8, "segment_alloc"), (8, "segment_free"), (4, "segment_alloc"))
    traces = [{"action": action, "addr": size, "size": size * MIB, "frames": FRAMES} for size, action in sizes]
    segments = [block(16 * MIB, is_used=True), block(4 * MIB, is_used=False)]
    found = use_of(tmp_path, segments, traces)
    assert found is not None
    assert (found.allocated_bytes, found.cached_bytes, found.peak_bytes) == (16 * MIB, 4 * MIB, 24 * MIB)
    assert [(one.line, one.bytes, one.blocks) for one in found.lines] == [("user/train.py:7", 16 * MIB, 1)]


def test_a_history_that_lost_its_beginning(tmp_path: Path) -> None:
    """The segments at the end say how much there was before the first entry."""
    traces = [{"action": "segment_free", "addr": 1, "size": 64 * MIB}]
    found = use_of(tmp_path, [block(16 * MIB, is_used=True)], traces)
    assert found is not None
    assert found.peak_bytes == 80 * MIB


def test_nothing_recorded_is_nothing_shown(tmp_path: Path) -> None:
    assert use_of(tmp_path, [], []) is None


def test_the_report_of_a_recorded_run() -> None:
    explanation = explain(load_snapshot(DATA / "cpp_stacks.pickle.gz").devices[0])
    assert explanation.pinned is not None
    assert explanation.pinned.allocated_bytes == 4 * MIB  # 2048 x 512 numbers of 4 bytes
    assert list(explanation.to_json()["pinned"]["lines"]) == [
        {"line": "project/train.py:14", "bytes": 4 * MIB, "blocks": 1}
    ]
    titles = [section.title for section in describe(explanation).sections if isinstance(section, Shares)]
    assert "Pinned host memory at the end: 4.0 MiB, at most 4.0 MiB" in titles


@pytest.mark.parametrize(
    "change",
    [
        {"host_traces": 5},
        {"host_traces": [5]},
        {"host_traces": [{"action": "alloc", "addr": 1, "size": -1}]},
        {"host_segments": 5},
        {"host_segments": [{"total_size": -1}]},
        {"host_segments": [5]},
    ],
)
def test_damaged_host_memory_is_refused_in_a_sentence(tmp_path: Path, change: dict[str, Any]) -> None:
    content = pickle.loads(gzip.decompress((DATA / "cpp_stacks.pickle.gz").read_bytes()))
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(content | change))
    with pytest.raises(SnapshotError, match="cannot be read as a snapshot"):
        load_snapshot(tmp_path / "a.pickle")
