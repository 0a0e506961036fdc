"""Why a recorded run ran out, each claim proved by replaying that run."""

import io
import json
import pickle
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.forked import client
from ullage.explaining.analysis.assumption import _nearest_pools
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.describe import describe
from ullage.explaining.analysis.explain import explain
from ullage.explaining.analysis.recording import Recording, insert
from ullage.recorded.history import Action, History, Labels, RecordedStacks, Segment
from ullage.recorded.program import Op
from ullage.recorded.rebuild import program_of
from ullage.recorded.settings import parse_settings, split_options
from ullage.recorded.snapshot.snapshot import load_snapshot
from ullage.report.report import Report, Table, TableRow, Tone
from ullage.report.terminal import draw

DATA = Path(__file__).parents[2] / "snapshots"
MIB = 1 << 20
GIB = 1 << 30


def recorded(name: str) -> Path:
    return DATA / f"{name}.pickle.gz"


def history_made_of(rows: tuple[tuple[int, int, int], ...], **settings: object) -> History:
    """A history of (action, address, bytes), on one stream and without stacks."""
    action, address, size = np.array(rows, np.int64).T
    nothing = np.zeros(len(rows), np.int64)
    return History(
        device=0,
        action=action,
        address=address,
        size=size,
        stream=nothing,
        time_us=nothing - 1,
        stack=nothing - 1,
        stacks=RecordedStacks(starts=np.zeros(1, np.int64), frames=np.zeros(0, np.int64), table=()),
        segments=(),
        annotations=(),
        settings=settings,
    )


@pytest.fixture(scope="module")
def fragmented() -> tuple[Recording, object]:
    history = load_snapshot(recorded("variable_length_oom")).devices[0]
    return Recording.of(history, program_of(history)), explain(history)


@pytest.mark.parametrize(
    ("name", "cause", "said"),
    [
        ("variable_length_oom", Cause.FRAGMENTED, "needed 346.0 MiB in one piece; 298.0 MiB were free on the GPU"),
        ("oom", Cause.TRULY_FULL, "7.01 GiB of 7.56 GiB were allocated when a request for 384.0 MiB failed"),
        ("oom_recover", Cause.TRULY_FULL, "311.0 MiB are missing"),
        ("normal", Cause.DID_NOT_FAIL, "No request failed. At the peak, in step "),
    ],
)
def test_one_cause_in_the_first_sentence(name: str, cause: Cause, said: str) -> None:
    explanation = explain(load_snapshot(recorded(name)).devices[0])
    assert explanation.cause is cause
    assert said in explanation.sentence
    assert explanation.fidelity.is_exact


def test_the_numbers_add_up(fragmented) -> None:
    evidence = fragmented[1].evidence
    assert evidence["room_bytes"] == evidence["reserved_bytes"] + evidence["free_bytes"]
    assert evidence["reserved_bytes"] == (
        evidence["allocated_bytes"] + evidence["cached_bytes"] + evidence["pending_bytes"]
    )
    assert sum(holder.bytes for holder in fragmented[1].holders) == evidence["allocated_bytes"]


def test_each_of_the_pinning_blocks_is_needed(fragmented) -> None:
    """Freed together the request succeeds; with any one of them kept it fails."""
    recording, explanation = fragmented
    failing = recording.failing_op
    keys = [block.key for block in explanation.pinning_set]
    assert keys

    def goes_through(freed: list[int]) -> bool:
        program = insert(recording.program, {failing: [(Op.FREE, key) for key in freed]})
        return failing + len(freed) not in recording.run(recording.rebuilt.settings, program).oom_ops

    assert goes_through(keys)
    for kept in keys:
        assert not goes_through([key for key in keys if key != kept])
    assert {block.line for block in explanation.pinning_set} <= {holder.line for holder in explanation.holders}


def test_remedies_are_replays(fragmented) -> None:
    remedies = {remedy.name: remedy for remedy in fragmented[1].remedies}
    assert remedies["expandable_segments:True"].fits
    assert remedies["expandable_segments:True"].more_calls < 0
    assert not remedies["roundup_power2_divisions:4"].fits
    every = remedies["torch.cuda.empty_cache() after every step"]
    assert every.fits
    assert every.more_calls > 1000, "it helps here, at a cost"
    assert all(remedy.proved for remedy in remedies.values())


def test_a_smaller_card() -> None:
    """A run that went well, in less room: the first request that fails there."""
    history = load_snapshot(recorded("normal")).devices[0]
    assert explain(history, capacity_bytes=1300 * MIB).cause is Cause.DID_NOT_FAIL
    small = explain(history, capacity_bytes=700 * MIB)
    assert small.cause is Cause.TRULY_FULL
    assert small.evidence["room_bytes"] == 700 * MIB
    assert any(not remedy.proved for remedy in small.remedies)


def test_the_request_that_the_answer_is_about_is_named() -> None:
    """Two requests failed in 30 MiB; with less given another one is first, with more none fails."""
    history = history_made_of(
        (
            (Action.SEGMENT_ALLOC, GIB, 24 * MIB),
            (Action.ALLOC, GIB, 24 * MIB),
            (Action.OOM, 6 * MIB, 40 * MIB),
            (Action.OOM, 6 * MIB, 50 * MIB),
        )
    )

    def said(capacity_bytes: int | None) -> str:
        return " ".join(explain(history, capacity_bytes=capacity_bytes).notes)

    assert "2 requests failed; this report explains the last one" in said(None)
    assert "2 requests failed; this report explains the last one" in said(70 * MIB)
    assert "2 requests failed in the recording; this report explains the first one that fails with the" in said(
        20 * MIB
    )
    assert "2 requests failed in the recording; none fails with the given capacity" in said(200 * MIB)


def test_few_of_many_pools_are_tried_for_a_request_that_failed() -> None:
    """Entries do not say in which pool it failed: those that were used last are replayed, not all of 200."""
    rows, segments = [], []
    for number in range(1, 201):
        address = number * GIB
        rows += [(Action.SEGMENT_ALLOC, address, 20 * MIB), (Action.ALLOC, address, 2 * MIB)]
        rows += [(what, address, 2 * MIB) for what in (Action.FREE_REQUESTED, Action.FREE_COMPLETED)]
        segments.append(
            Segment(
                address=address, size=20 * MIB, stream=0, is_large=True, is_expandable=False, pool=number, blocks=()
            )
        )
    failing = (*rows, (Action.OOM, MIB, 10 * MIB))  # 20 MiB are free in every pool
    history = replace(history_made_of(failing), segments=tuple(segments))
    tried = _nearest_pools(history, program_of(history).lives, len(failing) - 1)
    assert tried[0] == 200
    assert tried[-1] == 201
    assert len(tried) < 10


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ullage", "explain", *map(str, arguments)]
    return client.run(line, timeout=900)


def test_the_command_line(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ended = command(recorded("variable_length_oom"), "--json", "--html", page)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert answer["cause"] == "fragmented"
    assert {"evidence", "remedies", "holders", "pinning", "pinning_set"} <= answer.keys()
    assert all(pin["free_bytes"] > 0 for pin in answer["pinning"])
    named = [block for pin in answer["pinning"] for block in pin["blocks"]]
    assert sorted(named, key=str) == sorted(answer["pinning_set"], key=str), "the proved set and nothing beside it"
    assert all(block["line"].startswith("project/workloads.py:") for block in named)
    assert page.stat().st_size < 12 << 20
    assert "FRAGMENTATION" in page.read_text()
    text = command(recorded("oom")).stdout
    assert "NOT ENOUGH GPU MEMORY" in text
    assert re.search(r"expandable_segments:True +yes", text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.pickle",), "none.pickle cannot be read: No such file or directory"),
        ((DATA / "MANIFEST.md",), "contains no out-of-memory error"),
        ((recorded("oom"), "--device", "3"), "--device 3 does not have a history in"),
        ((recorded("oom"), "--capacity", "lots"), "--capacity 'lots' is not a size"),
        ((recorded("oom"), "--alloc-conf", "max_split_size_mb:1"), "max_split_size_mb:1 is too small"),
        ((recorded("oom"), "--torch-version", "new"), "'new' is not a version of torch"),
        ((recorded("oom"), "--html", recorded("oom")), "would replace"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[object, ...], said: str) -> None:
    ended = command(*arguments)
    assert (ended.returncode, ended.stdout) == (2, ""), ended
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_freed_memory_that_other_streams_hold_back_is_its_own_cause() -> None:
    """3 GiB are freed but may still be used elsewhere when 3 GiB are asked for on a card of 4 GiB."""
    rows = (
        (Action.SEGMENT_ALLOC, 0x1000000, 3 * GIB),
        (Action.ALLOC, 0x1000000, 3 * GIB),
        (Action.FREE_REQUESTED, 0x1000000, 3 * GIB),
        (Action.OOM, 1 * GIB, 3 * GIB),
        (Action.FREE_COMPLETED, 0x1000000, 3 * GIB),
    )
    explanation = explain(history_made_of(rows))
    assert explanation.cause is Cause.PENDING_FREES
    assert "3.00 GiB of memory were freed but not reusable yet" in explanation.sentence
    assert explanation.evidence["pending_bytes"] == 3 * GIB


def test_a_size_that_no_card_has_is_bogus() -> None:
    rows = ((Action.SEGMENT_ALLOC, 0x1000000, 2 * MIB), (Action.ALLOC, 0x1000000, 512), (Action.OOM, GIB, 1 << 50))
    explanation = explain(history_made_of(rows))
    assert explanation.cause is Cause.BOGUS_SIZE
    assert "1,125,899,906,842,624 bytes" in explanation.sentence


def test_what_was_refused_with_expandable_segments_is_no_lack_of_memory() -> None:
    rows = (
        (Action.SEGMENT_MAP, 0x1000000, 20 * MIB),
        (Action.ALLOC, 0x1000000, 20 * MIB),
        (Action.OOM, 8 * GIB, 40 * MIB),
    )
    assert explain(history_made_of(rows, expandable_segments=True)).cause is Cause.ADDRESS_SPACE


def test_a_room_in_which_the_run_fits_is_told() -> None:
    """The recorded request failed; with 4 GiB to reserve none does."""
    explanation = explain(load_snapshot(recorded("variable_length_oom")).devices[0], capacity_bytes=4 * GIB)
    assert explanation.cause is Cause.DID_NOT_FAIL
    assert "a request failed in the recording; none fails with the given capacity" in explanation.notes
    assert explanation.fidelity.is_exact, "compared in the room that the recording had"


def test_a_run_that_did_not_fail_is_shown_at_its_fullest() -> None:
    evidence = explain(load_snapshot(recorded("normal")).devices[0]).evidence
    assert evidence["allocated_bytes"] == evidence["peak_allocated_bytes"]


def test_the_picture_is_of_what_the_report_tells() -> None:
    explanation = explain(load_snapshot(recorded("variable_length_oom")).devices[0], with_picture=True)
    assert explanation.picture is not None
    assert sum(size for _, size, _ in explanation.picture.tree) == explanation.evidence["allocated_bytes"]


def test_the_version_is_told_where_something_speaks_for_it() -> None:
    """An option that torch 2.11 does not know, or nothing at all."""
    history = load_snapshot(recorded("normal")).devices[0]
    newer = explain(history, alloc_conf="pinned_free_catch_all:True")
    assert "assumed: torch 2.15, whose allocator reproduces the recording most closely" in newer.notes
    assert any(
        "torch 2.11 is assumed; a snapshot does not record its version" in note for note in explain(history).notes
    )
    assert not any("is taken for" in note for note in explain(history, semantics="2.11").notes)


def test_an_empty_snapshot_is_told_what_to_record(tmp_path: Path) -> None:
    file = tmp_path / "empty.pickle"
    file.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    explanation = explain(load_snapshot(file).devices[0])
    assert explanation.cause is Cause.CANNOT_TELL
    assert "_record_memory_history() before the run" in explanation.sentence


def test_more_than_any_card_has_is_no_hindrance() -> None:
    """1.5 TiB in three segments: virtual addresses of a strange machine, or nonsense; told, not failed on."""
    rows = tuple(
        (action, (127 << 40) + number * (1 << 39), 1 << 39)
        for number in range(3)
        for action in (Action.SEGMENT_ALLOC, Action.ALLOC)
    )
    explanation = explain(history_made_of(rows))
    assert explanation.evidence["peak_reserved_bytes"] == 3 << 39
    assert "the run reserved more memory than most GPUs have" in explanation.notes


def test_a_request_that_failed_and_was_caught_holds_nothing_where_it_succeeds() -> None:
    """6 GiB fail and are let go of; in the room of 8 GiB that is given, 3 GiB more have their place."""
    rows = (
        (Action.SEGMENT_ALLOC, 0x1000000, 2 * MIB),
        (Action.ALLOC, 0x1000000, MIB),
        (Action.OOM, 4 * GIB, 6 * GIB),
        (Action.SEGMENT_ALLOC, 0x10000000, 3 * GIB),
        (Action.ALLOC, 0x10000000, 3 * GIB),
    )
    explanation = explain(history_made_of(rows), capacity_bytes=8 * GIB)
    assert explanation.cause is Cause.DID_NOT_FAIL
    assert explanation.sentence.startswith("The recorded part of this run fits in 8.00 GiB")


def test_steps_are_counted_once_where_two_things_name_them() -> None:
    """A profiler's steps and the optimizer's are the same; memory grows with each all the same."""
    history = load_snapshot(recorded("loss_leak")).devices[0]
    ends = [note for note in history.annotations if note.stage == "END" and "zero_grad" in note.name]
    profiler = tuple(
        replace(note, name=f"ProfilerStep#{number}", time_us=note.time_us + 1) for number, note in enumerate(ends)
    )
    explanation = explain(replace(history, annotations=(*history.annotations, *profiler)))
    assert explanation.cause is Cause.LEAK
    assert explanation.growth.steps == len(profiler)


def test_a_name_in_square_brackets_is_shown_as_it_is(tmp_path: Path) -> None:
    """A path may look like the marks with which a terminal's colours are written."""
    data = pickle.dumps(
        {
            "segments": [],
            "device_traces": [
                [
                    {"action": "segment_alloc", "addr": 1 << 24, "size": 2 * MIB, "stream": 0, "frames": []},
                    {
                        "action": "alloc",
                        "addr": 1 << 24,
                        "size": MIB,
                        "stream": 0,
                        "frames": [{"name": "f", "filename": "/project/[/bold]ds.py", "line": 3}],
                    },
                ]
            ],
        }
    )
    file = tmp_path / "[red]snapshot.pickle"
    file.write_bytes(data)
    stream = io.StringIO()
    draw(describe(explain(load_snapshot(file).devices[0], source=str(file))), Console(file=stream, width=200))
    assert " [/bold]ds.py:3 " in stream.getvalue()
    assert "[red]snapshot.pickle" in stream.getvalue()


def test_what_is_there_before_a_recording_may_be_more_than_a_card_has() -> None:
    history = load_snapshot(recorded("normal")).devices[0]
    columns = ("action", "address", "size", "stream", "time_us", "stack")
    late = replace(history, **{name: getattr(history, name)[-500:] for name in columns}, labels=Labels())
    explanation = explain(late, capacity_bytes=500 * MIB)
    assert explanation.sentence.startswith("This run does not fit in 500.0 MiB")
    assert not any(remedy.fits for remedy in explanation.remedies)


def test_neither_torch_nor_a_card_is_needed(tmp_path: Path) -> None:
    """Every command that reads a recording works without importing torch; and this check can fail."""
    oom, script = str(recorded("oom")), str(tmp_path / "repro.py")
    commands = [["explain", oom, "--json"], ["tune", oom], ["repro", oom, "-o", script], ["diff", oom, oom]]
    for arguments in [*commands, ["--version"]]:
        load = "import torch" if arguments == ["--version"] else "pass"
        code = f"""
import sys
from ullage.cli.app import main
{load}
try:
    main({arguments!r})
except SystemExit:
    pass
sys.exit("torch" in sys.modules)
"""
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=900, check=False)
        assert ended.returncode == (load != "pass"), (arguments, ended.stderr)


def test_a_snapshot_of_the_oldest_protocol_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "old.pickle"
    file.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}, protocol=0))
    assert "The snapshot is empty" in command(file).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--capacity", "0B"), "--capacity 0B is not the memory of a GPU; expected a size such as 10GiB"),
        (("--capacity", "8388608TiB"), "is not the memory of a GPU; expected a size such as 10GiB, up to 1024 TiB"),
        (("--torch-version", "1" * 5000 + ".0"), "is not a version of torch"),
        (("--html", "loop"), "loop is a link or a device"),
        (("--html", "x" * 250), "is too long; expected a name of at most 230 characters"),
        (("--html", "-"), "looks like an option"),
    ],
)
def test_odd_values_are_one_sentence(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    line = [sys.executable, "-m", "ullage", "explain", str(recorded("oom")), *arguments]
    ended = client.run(line, timeout=900, cwd=tmp_path)
    assert (ended.returncode, said in ended.stderr) == (2, True), ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]


def test_a_setting_that_others_cannot_stand_beside_is_no_remedy_here() -> None:
    """Above 64 MiB of large_segment_size_mb PyTorch takes no max_split_size_mb:64."""
    names = {
        remedy.name
        for remedy in explain(
            load_snapshot(recorded("oom")).devices[0], alloc_conf="large_segment_size_mb:100"
        ).remedies
    }
    assert "max_split_size_mb:64" not in names
    assert "max_split_size_mb:128" in names


def drawn(name: str, *, is_whole: bool) -> str:
    """A report as it looks on a terminal of 80 columns."""
    stream = io.StringIO()
    report = describe(explain(load_snapshot(recorded(name)).devices[0], source="oom.pickle"))
    draw(report, Console(file=stream, width=80, highlight=False), is_whole=is_whole)
    return stream.getvalue()


NAMES = ["oom", "variable_length_oom", "loss_leak", "normal", "eval_with_grad"]


@pytest.mark.parametrize("name", NAMES)
def test_no_word_is_broken_in_eighty_columns(name: str) -> None:
    """Every word of a report's tables stands whole, in the short one as in the whole one; and no line is wider."""
    report = describe(explain(load_snapshot(recorded(name)).devices[0], source="oom.pickle"))
    tables = [section for section in (*report.sections, *report.details) if isinstance(section, Table)]
    words = {word for table in tables for row in table.rows for cell in row.cells for word in cell.split()}
    whole = drawn(name, is_whole=True)
    assert words <= set(whole.replace(",", ", ").split()) | set(whole.split())
    short = {word.rstrip(",") for word in drawn(name, is_whole=False).split()}
    complete = {word.rstrip(",") for word in words}
    cut = {one for one in short - complete if len(one) > 12 and any(word.startswith(one) for word in complete)}
    assert not cut, "what the short one has, it has whole"
    assert max(map(len, whole.splitlines())) <= 80


@pytest.mark.parametrize("name", ["oom", "variable_length_oom"])
def test_the_short_report_counts_and_names_what_does_not_help(name: str) -> None:
    """In less than 38 lines: the verdict, what helps, who held it; the others by their names, in a line or two."""
    explanation = explain(load_snapshot(recorded(name)).devices[0], source="oom.pickle")
    text = drawn(name, is_whole=False)
    fail = [remedy for remedy in explanation.remedies if remedy.proved and not remedy.fits]
    assert f"{len(fail)} {'change does' if len(fail) == 1 else 'changes do'} not help" in " ".join(text.split())
    for remedy in explanation.remedies:
        assert remedy.name.partition(":")[0].partition(",")[0].partition(" (")[0] in " ".join(text.split())
    assert " no " not in text
    assert len(text.splitlines()) < 44
    assert "Segments that" not in text
    assert "Segments that" in drawn(name, is_whole=True)


def test_a_table_that_is_too_wide_is_a_list() -> None:
    """Where no arrangement in columns leaves words whole, each row has lines of its own."""
    row = TableRow(cells=("a" * 50, "b" * 50, ""))
    table = Table(title="wide", columns=("what", "with", "and"), rows=(row,))
    stream = io.StringIO()
    report = Report(headline="H", tone=Tone.PLAIN, subject="", sentence="", sections=(table,))
    draw(report, Console(file=stream, width=80))
    assert f"  {row.cells[0]}\n" in re.sub(" +\n", "\n", stream.getvalue())
    assert f"with {row.cells[1]}" in stream.getvalue()


@pytest.mark.parametrize(
    "in_force",
    ["", "roundup_power2_divisions:2", "max_split_size_mb:512,pinned_use_background_threads:True"],
)
def test_the_line_to_paste_gives_the_settings_that_were_replayed(in_force: str) -> None:
    """The run's own options stay, whatever the shell has set; a replay of the pasted line does what is said of it."""
    history = replace(
        load_snapshot(recorded("variable_length_oom")).devices[0], settings={"PYTORCH_CUDA_ALLOC_CONF": in_force}
    )
    explanation = explain(history)
    [pasted] = re.findall(r"^  (export .*)$", explanation.sentence, re.MULTILINE)
    shell = (
        f"export PYTORCH_ALLOC_CONF=a:b PYTORCH_CUDA_ALLOC_CONF=c:d; {pasted}; exec {shlex.quote(sys.executable)} -c "
    )
    code = "import os, ullage.recorded.settings as s; print(s.settings_in_force(os.environ)[0])"
    text = subprocess.run(["sh", "-c", shell + shlex.quote(code)], capture_output=True, text=True, check=True).stdout
    assert set(split_options(in_force)) < set(split_options(text))
    recording = Recording.of(history, program_of(history))
    for remedy in explanation.remedies:
        if remedy.alloc_conf is None:
            continue
        done = recording.run(parse_settings(remedy.alloc_conf, semantics=recording.rebuilt.settings.semantics))
        assert (done.peak.reserved_bytes, done.driver_calls) == (remedy.peak_reserved_bytes, remedy.driver_calls)
        assert set(split_options(remedy.alloc_conf)) > set(split_options(in_force)) or remedy.setting is not None
    best = next(remedy for remedy in explanation.remedies if remedy.alloc_conf == text.strip())
    assert best.fits


def full_history(entries: int) -> dict[str, object]:
    """A snapshot whose trace has only the newest entries: one tensor stays, another one comes and goes."""
    base, size = 0x7F0000000000, 4 * MIB
    place = {"addr": base + 16 * MIB, "size": size, "stream": 0, "frames": []}
    actions = ("alloc", "free_requested", "free_completed")
    trace = [{"action": actions[time % 3], "time_us": time, **place} for time in range(entries + 3 - entries % 3)]
    stays = {"address": base, "size": 16 * MIB, "requested_size": 16 * MIB, "state": "active_allocated", "frames": []}
    free = {"address": base + 16 * MIB, "size": size, "requested_size": size, "state": "inactive", "frames": []}
    segment = {"device": 0, "address": base, "total_size": 20 * MIB, "stream": 0, "segment_type": "large"}
    segment |= {"allocated_size": 16 * MIB, "active_size": 16 * MIB, "segment_pool_id": (0, 0), "is_expandable": False}
    return {"segments": [{**segment, "blocks": [stays, free]}], "device_traces": [trace[-entries:]]}


@pytest.mark.parametrize(("entries", "is_full"), [(10_000, True), (1 << 14, True), (9_999, False), (300, False)])
def test_a_history_that_was_full_says_to_raise_max_entries(entries: int, is_full: bool, tmp_path: Path) -> None:
    file = tmp_path / "ring.pickle"
    file.write_bytes(pickle.dumps(full_history(entries)))
    notes = explain(load_snapshot(file).devices[0]).notes
    assert any(f"max_entries={10 * entries}" in note for note in notes) == is_full
