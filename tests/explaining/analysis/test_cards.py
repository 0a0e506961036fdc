"""Snapshots of several cards, of a state alone, and of blocks that wait: the right card, and what each of them held."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ullage
from tests.forked import client
from ullage.base.errors import UsageError
from ullage.explaining.analysis.cause import Cause

MIB = 1 << 20
FIRST, SECOND = 0x7F0000000000, 0x7E0000000000


def entry(action: str, address: int, size: int, time_us: int = 1) -> dict[str, Any]:
    place = {"device_free": address} if action == "oom" else {"addr": address}
    return {"action": action, "size": size, "stream": 0, "time_us": time_us, "frames": [], **place}


def segment(device: int, address: int, *blocks: tuple[int, str], stream: int = 0, pool: int = 0) -> dict[str, Any]:
    """A segment of blocks given as (bytes, state)."""
    parts, at = [], address
    for size, state in blocks:
        parts.append({"address": at, "size": size, "requested_size": size, "state": state, "frames": []})
        at += size
    return {
        "device": device,
        "address": address,
        "total_size": at - address,
        "stream": stream,
        "segment_type": "large",
        "segment_pool_id": (0, pool),
        "is_expandable": False,
        "blocks": parts,
    }


def file_of(folder: Path, segments: list[dict[str, Any]], *traces: list[dict[str, Any]]) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": list(traces)}))
    return path


@pytest.fixture
def two_cards(tmp_path: Path) -> Path:
    """Card 0 has more entries, and card 1 failed."""
    many = [entry("segment_alloc", FIRST, 100 * MIB)]
    for _ in range(5):
        many += [entry(what, FIRST, 100 * MIB) for what in ("alloc", "free_requested", "free_completed")]
    failing = [entry(what, SECOND, 100 * MIB) for what in ("segment_alloc", "alloc")] + [entry("oom", 0, 200 * MIB)]
    segments = [
        segment(0, FIRST, (100 * MIB, "inactive")),
        segment(1, SECOND, (100 * MIB, "active_allocated")),
    ]
    return file_of(tmp_path, segments, many, failing)


def test_the_card_that_failed_is_explained_and_the_others_have_a_row(two_cards: Path) -> None:
    explanation = ullage.explain(two_cards)
    assert (explanation.device, explanation.cause) == (1, Cause.TRULY_FULL)
    assert [(card.device, card.failures, card.peak_reserved_bytes) for card in explanation.cards] == [
        (0, 0, 100 * MIB),
        (1, 1, 100 * MIB),
    ]
    assert ullage.explain(two_cards, device=0).cause is Cause.DID_NOT_FAIL
    assert ullage.explain(two_cards, device="1").cause is Cause.TRULY_FULL


def test_all_cards_are_explained_where_that_is_asked_for(two_cards: Path) -> None:
    explanation = ullage.explain(two_cards, device="all")
    assert explanation.device == 1
    assert [other.device for other in explanation.others] == [0]


def test_a_picture_of_all_cards_is_refused_in_the_words_of_python(two_cards: Path) -> None:
    with pytest.raises(UsageError) as refused:
        ullage.explain(two_cards, device="all", picture=True)
    assert "--" not in str(refused.value)


@pytest.mark.parametrize("command", ["explain", "tune", "repro"])
def test_every_command_takes_the_card_that_failed(two_cards: Path, command: str, tmp_path: Path) -> None:
    output = ["-o", str(tmp_path / "made.py")] if command == "repro" else []
    done = run(command, two_cards, "--json", *output)
    answer = json.loads(done.stdout)
    asked = {"explain": "evidence", "tune": "present"}
    assert answer[asked[command]] if command in asked else answer["requested_bytes"] == 200 * MIB
    assert answer.get("device", 1) == 1


def test_the_command_line_shows_one_card_or_all(two_cards: Path) -> None:
    one = run("explain", two_cards).stdout
    assert "NOT ENOUGH GPU MEMORY" in one
    assert "--device 0" in one
    every = run("explain", two_cards, "--device", "all").stdout
    assert "NOT ENOUGH GPU MEMORY" in every
    assert "PEAK 100.0 MiB" in every
    answer = json.loads(run("explain", two_cards, "--device", "all", "--json").stdout)
    assert [answer["device"], *(other["device"] for other in answer["others"])] == [1, 0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "2"], "--device 2 does not have a history"),
        (["--device", "x"], "expected one of 0, 1, or all"),
        (["--device", "first"], "--device first does not have a history"),
        (["--device", "all", "--html", "page.html"], "a page shows one GPU"),
        (["--sql", "same.out", "--html", "./same.out"], "--sql"),
    ],
)
def test_mistakes_are_one_sentence(
    two_cards: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(two_cards.parent)
    done = run("explain", two_cards, *arguments)
    assert done.returncode == 2
    assert list(two_cards.parent.iterdir()) == [two_cards]
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_an_entry_of_the_dump_itself_makes_no_card(tmp_path: Path) -> None:
    """Card 0 is empty but for the entry that PyTorch writes when it dumps; the memory is on card 1."""
    held = segment(1, SECOND, (100 * MIB, "active_allocated"))
    explanation = ullage.explain(file_of(tmp_path, [held], [entry("snapshot", 0, 0)], []))
    assert (explanation.device, explanation.cards) == (1, ())
    assert explanation.evidence["allocated_bytes"] == 100 * MIB


@pytest.mark.parametrize("left", ["snapshot", "free_completed", "segment_free"])
def test_one_entry_that_is_left_over_is_no_recording(tmp_path: Path, left: str) -> None:
    held = segment(0, FIRST, (100 * MIB, "active_allocated"))
    explanation = ullage.explain(file_of(tmp_path, [held], [entry(left, SECOND, 20 * MIB)]))
    assert explanation.cause is Cause.CANNOT_TELL
    assert explanation.headline == "CAUSE UNKNOWN"
    assert explanation.remedies == ()
    assert explanation.evidence["reserved_bytes"] == 100 * MIB
    said = " ".join([explanation.sentence, *explanation.notes])
    assert "neither the memory requests nor whether one failed" in said
    assert "no trace" not in said, "there is one"


def test_what_waits_for_a_stream_is_not_allocated(tmp_path: Path) -> None:
    held = segment(0, FIRST, (60 * MIB, "active_allocated"), (40 * MIB, "active_pending_free"), stream=0x5000)
    explanation = ullage.explain(file_of(tmp_path, [held], []))
    evidence = explanation.evidence
    assert (evidence["allocated_bytes"], evidence["pending_bytes"], evidence["cached_bytes"]) == (60 * MIB, 40 * MIB, 0)
    assert evidence["peak_allocated_bytes"] == 60 * MIB
    assert sum(holder.bytes for holder in explanation.holders) == 60 * MIB
    assert [(memory.stream, memory.pending_bytes) for memory in explanation.streams] == [(0x5000, 40 * MIB)]


def test_what_waited_before_recording_began_is_free_where_its_free_ends(tmp_path: Path) -> None:
    trace = [
        entry("alloc", FIRST + 60 * MIB, 10 * MIB),
        entry("free_requested", FIRST + 60 * MIB, 10 * MIB),
        entry("free_completed", FIRST + 60 * MIB, 10 * MIB),
        entry("free_completed", FIRST, 40 * MIB),
        entry("alloc", FIRST, 70 * MIB),
    ]
    held = segment(0, FIRST, (70 * MIB, "active_allocated"), (30 * MIB, "inactive"))
    explanation = ullage.explain(file_of(tmp_path, [held], trace))
    assert explanation.evidence["peak_allocated_bytes"] == 70 * MIB
    assert explanation.fidelity is not None
    assert explanation.fidelity.displaced == 1, "20 MiB of the hole before the first allocation are somebody's"


def test_streams_and_private_pools_are_named(tmp_path: Path) -> None:
    segments = [
        segment(0, FIRST, (100 * MIB, "active_allocated")),
        segment(0, SECOND, (30 * MIB, "active_allocated"), stream=0x5000, pool=3),
    ]
    path = file_of(tmp_path, segments, [])
    explanation = ullage.explain(path)
    assert [(memory.stream, memory.pool, memory.reserved_bytes) for memory in explanation.streams] == [
        (0, 0, 100 * MIB),
        (0x5000, 3, 30 * MIB),
    ]
    assert "stream 0x5000, private pool 3" in run("explain", path).stdout


def test_memory_that_is_free_on_another_stream_is_told_as_that(tmp_path: Path) -> None:
    segments = [
        segment(0, FIRST, (60 * MIB, "active_allocated")),
        segment(0, SECOND, (40 * MIB, "inactive"), (2 * MIB, "active_allocated"), stream=0x5000),
    ]
    trace = [entry("alloc", FIRST, 60 * MIB), entry("oom", 0, 30 * MIB)]
    explanation = ullage.explain(file_of(tmp_path, segments, trace))
    assert explanation.headline == "FREE MEMORY BELONGS TO ANOTHER STREAM OR POOL"
    assert "40.0 MiB were free in one piece on another stream" in explanation.sentence


def test_a_failure_that_the_replay_does_not_show_is_not_denied(tmp_path: Path) -> None:
    """The file says that 30 MiB failed, with 40 MiB of the same stream's cache unused."""
    held = segment(0, FIRST, (60 * MIB, "active_allocated"), (40 * MIB, "inactive"))
    trace = [entry("segment_alloc", FIRST, 100 * MIB), entry("alloc", FIRST, 60 * MIB), entry("oom", 0, 30 * MIB)]
    explanation = ullage.explain(file_of(tmp_path, [held], trace))
    assert explanation.cause is Cause.CANNOT_TELL
    assert "A request failed in this recording" in explanation.sentence


def test_a_page_is_written_though_nobody_reads_the_report(two_cards: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "ullage", "explain", str(two_cards), "--html", str(page)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert "Traceback" not in done.stderr
    assert "NOT ENOUGH GPU MEMORY" in page.read_text()


def run(command: str, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return client.run(
        [sys.executable, "-m", "ullage", command, str(path), *arguments],
    )
