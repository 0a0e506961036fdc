"""Memory timelines of PyTorch's profiler, in each form that it exports."""

import gzip
import importlib.util
import json
import re
from pathlib import Path

import pytest

import ullage
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.timeline import TimelineExplanation, describe_timeline
from ullage.recorded.timeline import CATEGORIES, timeline_of

GIB = 1 << 30
LEVELS = [[0, 4 * GIB, 8 * GIB, 0, 0, step * GIB, 0, 0, 0] for step in (0, 2, 6, 1)]
TIMES = [5_000_000, 5_000_100, 5_250_000, 6_000_000]
# The same as events in nanoseconds: created, and destroyed.
EVENTS = [
    [-1, 1, 4 * GIB, 0],
    [-1, 1, 8 * GIB, 1],
    [5_000_000_000, 1, 0, 7],
    [5_000_100_000, 2, 2 * GIB, 4],
    [5_250_000_000, 2, 6 * GIB, 4],
    [5_250_000_000, 3, -2 * GIB, 4],
    [6_000_000_000, 4, -5 * GIB, 4],
]


def explained(path: Path) -> TimelineExplanation:
    found = ullage.explain(path)
    assert isinstance(found, TimelineExplanation)
    return found


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_peak_roles_and_time(tmp_path: Path, name: str) -> None:
    text = json.dumps([TIMES, LEVELS]).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    found = explained(tmp_path / name)
    assert found.cause is Cause.DID_NOT_FAIL
    assert found.headline == "PEAK 18.00 GiB"
    assert "at most 18.00 GiB, 250 ms after its beginning" in found.sentence
    assert "optimizer state 8.00 GiB, activations 6.00 GiB, parameters 4.00 GiB" in found.sentence
    assert "after 1.0 s, 13.00 GiB are in use" in found.sentence
    answer = found.to_json()
    assert answer["evidence"]["peak_time_us"] == 250_000
    assert answer["categories"][0] == {"name": "optimizer state", "bytes": 8 * GIB}
    assert json.loads(json.dumps(answer))["cause"] == "did_not_fail"
    titles = [section.title for section in describe_timeline(found).sections]
    assert titles[-1] == "What this file does not contain"


def test_events_give_the_same_figures_as_levels(tmp_path: Path) -> None:
    (tmp_path / "t.raw.json.gz").write_bytes(gzip.compress(json.dumps(EVENTS).encode()))
    found = explained(tmp_path / "t.raw.json.gz")
    assert found.evidence["allocated_bytes"] == 13 * GIB
    assert found.evidence["peak_allocated_bytes"] == 20 * GIB  # for a moment, the old and the new version exist
    assert dict(found.categories)["activations"] == 8 * GIB
    assert found.evidence["length_us"] == 1_000_000


def test_a_page_and_a_terminal_show_it(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([TIMES, LEVELS]))
    page = tmp_path / "page.html"
    assert "PEAK 18.00 GiB" in str(ullage.explain(tmp_path / "t.json", html=page))
    assert "optimizer state" in page.read_text()


@pytest.mark.parametrize(
    "damaged",
    [
        "[[0, 1], [[1, 2]]]",
        "[[0, 1], [[0, 512], [0, 512, 3]]]",
        "[[0, 1], 5]",
        "[[0, 1]",
        "[[3]]",
        "[[1, 2], [[0, Infinity], [0, 1]]]",
        "[[1], [[-5, 0, 0, 0, 0, 0, 0, 0, 0]]]",
        "[[1], [[0, -5, 9, 0, 0, 0, 0, 0, 0]]]",
        '[[1, 2], ["12", "34"]]',
        "[[1, 2, true, 0]]",
        "[[1, 1, 512, 99]]",
        "[[1, 1, 512, -1]]",
        "[[1, 1, 512]]",
        "[[1, 1, -512, 0]]",
        "[[1, 1, 1e300, 0]]",
        "[[1, 1, 99999999999999999999999, 0]]",
        "[[], []]",
        "[[1], [[0, 0, 0, 0, 0, 0, 0, 0, 0]]]",
        f"[[1, 1, {1 << 49}, 0], [1, 1, {1 << 49}, 0], [1, 1, {1 << 49}, 1]]",
        "[[1]," + "[" * 4000,
    ],
)
def test_a_damaged_timeline_is_refused_in_a_sentence(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "t.json").write_text(damaged)
    with pytest.raises(ullage.UsageError, match="cannot be read as a memory timeline of PyTorch's profiler"):
        ullage.explain(tmp_path / "t.json")


def test_another_command_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps([TIMES, LEVELS]))
    with pytest.raises(ullage.UsageError, match="is not a snapshot but a memory timeline of PyTorch's profiler"):
        ullage.tune(tmp_path / "t.json")
    with pytest.raises(ullage.UsageError, match="leave the option out"):
        ullage.explain(tmp_path / "t.json", capacity="8GiB")


def test_a_picture_of_a_timeline_is_named(tmp_path: Path) -> None:
    head = '<html>\n<head><meta charset="utf-8" /><title>GPU Memory Timeline HTML</title></head>\n<body>\n'
    (tmp_path / "t.html").write_text(head + "  <img src='data:image/png;base64,iVBORw0KGgo='>\n</body>\n</html>")
    with pytest.raises(ullage.UsageError, match=r"a picture of the profiler's memory timeline.*ends in \.json"):
        ullage.explain(tmp_path / "t.html")


def test_the_categories_are_those_of_torch() -> None:
    """PyTorch numbers the categories in the order of its table of colours. torch is not imported, only read."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    source = (Path(found.origin).parent / "profiler" / "_memory_profiler.py").read_text()
    colours = source.partition("_CATEGORY_TO_COLORS = {")[2].partition("}")[0]
    named = re.findall(r"^ *(?:Category\.)?(\w+):", colours, re.MULTILINE)
    words = {"parameter": "parameters", "input": "inputs", "activation": "activations", "gradient": "gradients"}
    words |= {"none": "unknown"}
    expected = [words.get(name.lower(), name.lower().replace("_", " ")) for name in named]
    assert expected == list(CATEGORIES)


def test_other_categories_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[[0, 1], [[0, 512, 0], [0, 1024, 512]]]")
    found = explained(tmp_path / "t.json")
    assert found.categories == (("unknown", 1536),)
    assert any("_record_memory_history" in note for note in found.notes)


def test_one_moment_is_enough() -> None:
    timeline = timeline_of(json.dumps([[7], [[0, 512, 0, 0, 0, 0, 0, 0, 0]]]).encode())
    assert (timeline.peak, timeline.total_bytes.tolist(), timeline.time_us.tolist()) == (0, [512], [0])
