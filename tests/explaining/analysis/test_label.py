"""Labels that a program gave to its memory: by tensor, by thread, and by range."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from ullage.explaining.analysis.describe import describe
from ullage.explaining.analysis.explain import explain
from ullage.explaining.analysis.label import UNNAMED
from ullage.explaining.difference.difference import difference_of
from ullage.recorded.history import History
from ullage.recorded.snapshot.snapshot import load_snapshot
from ullage.report.report import Shares

DATA = Path(__file__).parents[2] / "snapshots"
MIB = 1 << 20


def entry(action: str, place: int, label: str = "", time_us: int = 0) -> dict[str, Any]:
    size = {"action": action, "addr": place << 25, "size": 20 * MIB, "stream": 0, "time_us": time_us, "frames": []}
    return {**size, "user_metadata": label}


def recorded(tmp_path: Path, *entries: dict[str, Any], ranges: tuple[tuple[str, str, int], ...] = ()) -> History:
    places = dict.fromkeys(each["addr"] for each in entries if each["action"] == "alloc")
    segments = [{"action": "segment_alloc", "addr": place, "size": 20 * MIB, "stream": 0} for place in places]
    notes = [{"stage": stage, "name": name, "device": 0, "time_us": time_us} for stage, name, time_us in ranges]
    content = {"segments": [], "device_traces": [[*segments, *entries]], "external_annotations": notes}
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(content))
    return load_snapshot(tmp_path / "a.pickle").devices[0]


def bytes_by_label(history: History) -> dict[str, int]:
    return {one.label: one.bytes for one in explain(history).labels}


def test_labels_of_a_recorded_run_are_in_every_form() -> None:
    history = load_snapshot(DATA / "cpp_stacks.pickle.gz").devices[0]
    explanation = explain(history, with_picture=True)
    labels = bytes_by_label(history)
    assert labels["lookup table"] == 12 * MIB  # 3,000,000 numbers of 4 bytes; the rest of the segment is not split off
    assert labels["phase: setup"] == 3 * (512 * 512 * 4 + 512 * 4)  # three linear layers
    assert set(labels) == {"forward", "lookup table", "phase: setup", "Optimizer.step#Adam.step", UNNAMED}
    assert sum(labels.values()) == explanation.evidence["allocated_bytes"]
    assert [one["label"] for one in explanation.to_json()["labels"]] == [one.label for one in explanation.labels]
    (table,) = (one for one in describe(explanation).sections if isinstance(one, Shares) and "by label" in one.title)
    assert {part.label for part in table.parts} == set(labels)
    assert explanation.picture is not None
    (facet,) = (facet for facet in explanation.picture.blocks.facets if facet.title == "label")
    assert set(facet.labels) >= set(labels)


def test_a_label_of_a_tensor_belongs_to_the_block_that_was_alive(tmp_path: Path) -> None:
    """The address is used again by a block without a label, and a label may be changed."""
    history = recorded(
        tmp_path,
        entry("alloc", 1),
        entry("annotate", 1, "old"),
        entry("free_completed", 1),
        entry("alloc", 1),
        entry("alloc", 2),
        entry("annotate", 2, "first"),
        entry("annotate", 2, "second"),
    )
    assert bytes_by_label(history) == {UNNAMED: 20 * MIB, "second": 20 * MIB}


def test_a_label_that_came_before_recording_began_is_of_its_block(tmp_path: Path) -> None:
    history = recorded(tmp_path, entry("annotate", 3, "kept"), entry("free_completed", 3), entry("alloc", 1))
    assert bytes_by_label(history).get("kept") in (20 * MIB, None)
    assert explain(history).cause.value == "did_not_fail"


def test_of_several_labels_the_nearest_to_the_tensor_counts(tmp_path: Path) -> None:
    history = recorded(
        tmp_path,
        entry("alloc", 1, "thread", 10),
        entry("annotate", 1, "tensor", 11),
        entry("alloc", 2, "thread", 12),
        entry("alloc", 3, "", 13),
        entry("alloc", 4, "", 30),
        ranges=(("START", "range#3", 5), ("END", "range#3", 20)),
    )
    assert bytes_by_label(history) == dict.fromkeys(("tensor", "thread", "range", UNNAMED), 20 * MIB)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"phase": "init"}', "phase: init"),
        ('{"phase": "init", "rank": 3}', "phase: init, rank: 3"),
        ("{not json", "{not json"),
        ("{}", "{}"),
        ("[1, 2]", "[1, 2]"),
        ("{" * 5000, "{" * 100 + "…" + "{" * 100),
        ("a\nb\x1b", "a�b�"),
    ],
)
def test_how_a_label_is_shown(tmp_path: Path, text: str, shown: str) -> None:
    assert bytes_by_label(recorded(tmp_path, entry("alloc", 1, text))) == {shown: 20 * MIB}


def test_memory_without_labels_has_no_table(tmp_path: Path) -> None:
    explanation = explain(recorded(tmp_path, entry("alloc", 1)), with_picture=True)
    assert explanation.labels == ()
    assert explanation.picture is not None
    assert "label" not in [facet.title for facet in explanation.picture.blocks.facets]


def test_ranges_of_pytorch_alone_are_not_labels(tmp_path: Path) -> None:
    """A profiler marks the steps of every run, and a table of them would repeat what the table of lines shows."""
    allocations = entry("alloc", 1, "", 10), entry("alloc", 2, "", 30)
    ranges = ("START", "Optimizer.step#Adam.step", 5), ("END", "Optimizer.step#Adam.step", 20)
    assert bytes_by_label(recorded(tmp_path, *allocations, ranges=ranges)) == {}


def test_diff_compares_labels_of_tensors() -> None:
    history = load_snapshot(DATA / "cpp_stacks.pickle.gz").devices[0]
    assert "lookup table" in {change.name for change in difference_of([history], [history]).annotations}
