"""A recorded failure in a few requests: the same failure, nothing in it that is not needed, nothing of the user's."""

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.forked import client
from ullage.base.errors import UsageError
from ullage.cli.app import main
from ullage.explaining.analysis.cause import Cause
from ullage.explaining.analysis.recording import Recording, cut
from ullage.explaining.reproduction.oracle import Oracle
from ullage.explaining.reproduction.reproduction import Reproduction, beginning_of, reproduce, sketch_of
from ullage.explaining.reproduction.shrink import Sketch, shrink
from ullage.explaining.reproduction.transcript import script_of, statement_of
from ullage.recorded.allocator.placement import PLACEMENTS
from ullage.recorded.allocator.replay import Replay, ReplayDevice, State, replay
from ullage.recorded.history import Action, Annotation, Frame, History, Labels
from ullage.recorded.program import Op
from ullage.recorded.rebuild import program_of
from ullage.recorded.settings import Settings, parse_settings, text_of_settings
from ullage.recorded.snapshot.snapshot import load_snapshot

DATA = Path(__file__).parents[2] / "snapshots"
MIB = 1 << 20


def recorded(name: str) -> Path:
    return DATA / f"{name}.pickle.gz"


def history_of(name: str) -> History:
    return load_snapshot(recorded(name)).devices[0]


def recording_of(history: History, capacity_bytes: int | None = None) -> Recording:
    return Recording.of(history, program_of(history, capacity_bytes=capacity_bytes))


def begin_of(history: History, share: float) -> int:
    """An entry after a share of all, but not in the middle of a free."""
    begin = int(len(history) * share)
    return begin + int(history.action[begin] == Action.FREE_COMPLETED)


def late(history: History, share: float) -> History:
    """The history with its first entries cut off, as a full ring does."""
    begin = begin_of(history, share)
    columns = ("action", "address", "size", "stream", "time_us", "stack")
    return replace(history, **{name: getattr(history, name)[begin:] for name in columns})


def made_of(rows: list[tuple[Action, int, int, int]]) -> History:
    """A history of (action, address, bytes, stream)."""
    columns = dict(zip(("action", "address", "size", "stream"), np.array(rows, np.int64).T, strict=True))
    nothing = np.full(len(rows), -1, np.int64)
    return replace(history_of("oom_recover"), **columns, time_us=nothing, stack=nothing, segments=(), annotations=())


def two_streams() -> History:
    """6 MiB on each of two streams, each in a segment of 20 MiB; then 15 MiB, with 8 MiB free and 28 MiB cached."""
    return made_of(
        [
            (Action.SEGMENT_ALLOC, 0x10000000, 20 * MIB, 7),
            (Action.ALLOC, 0x10000000, 6 * MIB, 7),
            (Action.SEGMENT_ALLOC, 0x20000000, 20 * MIB, 0),
            (Action.ALLOC, 0x20000000, 6 * MIB, 0),
            (Action.OOM, 8 * MIB, 15 * MIB, 0),
        ]
    )


def fail_in(sketch: Sketch, room_bytes: int, text: str = "", placement: str | None = None) -> Replay:
    """Run a sketch on a card that has only the room: no fraction, as the recorded run had none."""
    device = ReplayDevice(total_bytes=room_bytes, placement=placement)
    return replay(sketch.program(), parse_settings(text), device, stop_after_ooms=1)


@pytest.fixture(scope="module")
def fragmented() -> Reproduction:
    return reproduce(history_of("variable_length_oom"), seconds=120)


def test_a_long_run_becomes_a_few_requests(fragmented: Reproduction) -> None:
    """29,609 allocations become four, which fail at the last: the same request, memory enough, but not in one piece."""
    assert (fragmented.allocations, fragmented.recorded_allocations) == (4, 29609)
    assert fragmented.finished
    assert fragmented.cause is Cause.FRAGMENTED
    for placement in PLACEMENTS:
        done = fail_in(fragmented.sketch, fragmented.room_bytes, placement=placement)
        assert (done.done, done.oom_ops.tolist()) == (len(fragmented.sketch), [len(fragmented.sketch) - 1])
        free, cached = fragmented.room_bytes - done.now.reserved_bytes, done.now.reserved_bytes - done.now.active_bytes
        assert (free, cached) == (fragmented.free_bytes, fragmented.cached_bytes)
        assert free < fragmented.needed_bytes == 346 * MIB <= free + cached
    made = program_of(history_of("variable_length_oom"))
    assert fragmented.requested_bytes == int(made.program.size[made.program.op == Op.ALLOCATE][-1])
    assert not fail_in(fragmented.sketch, fragmented.room_bytes, "expandable_segments:True").ran_out
    assert fragmented.expandable_helps


@pytest.mark.parametrize(
    ("name", "capacity_mib", "cause"),
    [
        ("oom_recover", None, Cause.TRULY_FULL),
        ("normal", 700, Cause.TRULY_FULL),
        ("two_streams", 300, Cause.TRULY_FULL),
    ],
)
def test_the_cause_stays_and_each_allocation_is_needed(name: str, capacity_mib: int | None, cause: Cause) -> None:
    """Sizes kept: a part of the run in its order, whose last request fails; without any one allocation it does not."""
    history = history_of(name)
    capacity = capacity_mib * MIB if capacity_mib else None
    found = reproduce(history, capacity_bytes=capacity, keep_sizes=True, seconds=120)
    recording = recording_of(history, capacity)
    whole = sketch_of(recording)
    assert (found.finished, found.cause) == (True, cause)
    rows = zip(*(column.tolist() for column in (whole.op, whole.key, whole.size)), strict=True)
    left = zip(*(column.tolist() for column in (found.sketch.op, found.sketch.key, found.sketch.size)), strict=True)
    assert all(row in rows for row in left), "not a subsequence of the run"  # `in` consumes the iterator
    assert fail_in(found.sketch, found.room_bytes).done == len(found.sketch)
    oracle = Oracle.of(recording, whole)
    assert oracle.fails(found.sketch)
    for key in found.sketch.keys.tolist():
        assert not oracle.fails(found.sketch.without(np.array([key])))


ROOM = 64 * MIB
requests = st.lists(
    st.one_of(st.integers(1, 6).map(lambda mib: mib * MIB - 512), st.integers(1, MIB), st.integers(-8, -1)),
    min_size=4,
    max_size=30,
)


def sketch_of_requests(numbers: list[int]) -> Sketch:
    """Above 0: an allocation of that size. Below: a free of the n-th youngest that is alive."""
    alive: list[int] = []
    rows = []
    for number in numbers:
        if number > 0:
            alive.append(len(rows))
            rows.append((Op.ALLOCATE, len(rows), number, 0))
        elif alive:
            rows.append((Op.FREE, alive.pop(max(number, -len(alive))), 0, 0))
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return Sketch(**dict(zip(("op", "key", "size", "stream"), columns, strict=True)))


def is_fragmented(sketch: Sketch) -> bool:
    """Fails at the last request, though as much memory is free or cached."""
    done = fail_in(sketch, ROOM)
    return done.ran_out and done.done == len(sketch) and ROOM - done.now.active_bytes >= int(sketch.size[-1])


@settings(max_examples=100, deadline=None)
@given(requests)
def test_whatever_fails_is_shrunk_to_what_is_needed(numbers: list[int]) -> None:
    """Any program: what is left fails in the same way, asks for the same at last, and nothing of it can be left out."""
    before = sketch_of_requests(numbers)
    assume(len(before))
    done = fail_in(before, ROOM)
    assume(not done.ran_out)
    last = (Op.ALLOCATE, len(numbers), (ROOM - done.now.active_bytes) // (2 * MIB) * 2 * MIB, 0)
    columns = (before.op, before.key, before.size, before.stream)
    sketch = Sketch(
        **{
            name: np.append(column, value)
            for name, column, value in zip(("op", "key", "size", "stream"), columns, last, strict=True)
        }
    )
    assume(is_fragmented(sketch))
    for keep_sizes in (True, False):
        found = shrink(sketch, is_fragmented, seconds=120, keep_sizes=keep_sizes)
        assert found.finished
        assert is_fragmented(found.sketch)
        assert found.sketch.size[-1] == sketch.size[-1]
        for key in found.sketch.keys.tolist():
            assert not is_fragmented(found.sketch.without(np.array([key])))
        again = shrink(sketch, is_fragmented, seconds=120, keep_sizes=keep_sizes)
        assert (again.sketch.size == found.sketch.size).all()
        assert set(found.sketch.key.tolist()) <= set(sketch.key.tolist())
        if keep_sizes:
            for key in found.sketch.keys.tolist():
                assert found.sketch.size_of(key) == sketch.size_of(key)


def test_when_the_time_runs_out_the_best_so_far_is_there() -> None:
    """No time at all: the whole run, which fails, and the script says that it is not the smallest."""
    found = reproduce(history_of("oom_recover"), seconds=0)
    assert not found.finished
    assert (found.allocations, found.recorded_allocations) == (447, 448), "one failed before, and empties the cache"
    assert fail_in(found.sketch, found.room_bytes).done == len(found.sketch)
    assert "the time limit ended the search before the smallest" in " ".join(script_of(found).replace("#", " ").split())
    assert "no allocation can be left out" not in script_of(found)


# ---- what a script does in another way than the run


def layout(done: Replay) -> Counter[tuple[tuple[int, bool], ...]]:
    """Every segment as its blocks in order: (bytes, whether it is allocated)."""
    segments: dict[int, list[tuple[int, bool]]] = {}
    columns = (done.blocks.segment, done.blocks.size, done.blocks.state)
    for segment, size, state in zip(*(column.tolist() for column in columns), strict=True):
        segments.setdefault(segment, []).append((size, state == State.ALLOCATED))
    return Counter(tuple(blocks) for blocks in segments.values())


@pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
def test_what_was_there_is_made_again(share: float) -> None:
    """The first entries are cut off: what is made in their place is what the whole run had there, block for block."""
    history = history_of("variable_length_oom")
    whole = program_of(history)
    before = cut(whole.program, int(np.searchsorted(whole.row_of_op, begin_of(history, share))))
    then = replay(before, whole.settings, ReplayDevice(total_bytes=whole.room_bytes))
    rebuilt = program_of(late(history, share))
    made = beginning_of(rebuilt.program.start, rebuilt.settings, first_key=len(rebuilt.row_of_key))
    columns = np.array(made, np.int64).T
    done = fail_in(Sketch(**dict(zip(("op", "key", "size", "stream"), columns, strict=True))), rebuilt.room_bytes)
    assert not done.ran_out
    assert sum(layout(then).values()) > 50
    assert layout(done) == layout(then)


def test_a_recording_that_begins_in_the_middle_fails_in_the_same_way() -> None:
    """And the script says that it did."""
    found = reproduce(late(history_of("variable_length_oom"), 0.999), seconds=120)
    assert (found.cause, found.requested_bytes) == (Cause.FRAGMENTED, 361728000)
    assert found.allocations < 10
    assert fail_in(found.sketch, found.room_bytes).done == len(found.sketch)
    assert "recording began after the start of the process: 331 blocks in 72 segments" in re.sub(
        r"\s+#?\s*", " ", script_of(found)
    )


def test_a_limit_below_the_card_is_the_room() -> None:
    """The driver refused 100 MiB with 640 MiB free: the script's limit stands for the one that the run met."""
    found = reproduce(
        made_of(
            [
                (Action.SEGMENT_ALLOC, 0x10000000, 20 * MIB, 0),
                (Action.ALLOC, 0x10000000, 6 * MIB, 0),
                (Action.OOM, 640 * MIB, 100 * MIB, 0),
            ]
        )
    )
    assert found.room_bytes < 120 * MIB
    assert found.notes == (
        "the driver refused the request with 540.0 MiB of its memory still free; the script sets a limit instead",
    )


def test_one_request_that_never_fits() -> None:
    """Nothing is needed before it."""
    found = reproduce(made_of([(Action.OOM, 640 * MIB, 1 << 30, 0)]))
    script = script_of(found)
    assert "\ntry:\n    is_last = True\n    x1 = torch.empty(1 * GIB," in script
    assert "1 allocation, of 1 in the recording" in script


def test_without_a_trace_there_is_nothing_to_reproduce() -> None:
    columns = ("action", "address", "size", "stream", "time_us", "stack")
    history = replace(history_of("normal"), **dict.fromkeys(columns, np.zeros(0, np.int64)))
    with pytest.raises(UsageError, match="this file has no trace"):
        reproduce(history)


def test_streams_stay_where_they_matter() -> None:
    """Memory that is cached for another stream cannot be used: on one stream the request would succeed."""
    found = reproduce(two_streams())
    assert found.cause is Cause.FRAGMENTED
    assert found.allocations == 3
    assert len(set(found.sketch.stream.tolist())) == 2
    script = script_of(found)
    assert script.count("torch.cuda.Stream()") == 1
    assert script.count("with torch.cuda.stream(s1): x1 = torch.empty(") == 1


def test_a_late_free_is_a_free_where_the_block_came_back() -> None:
    """Another stream used the block until after the second request, so the third is the first to get its place."""
    history = made_of(
        [
            (Action.SEGMENT_ALLOC, 0x10000000, 20 * MIB, 0),
            (Action.ALLOC, 0x10000000, 8 * MIB, 0),
            (Action.FREE_REQUESTED, 0x10000000, 8 * MIB, 0),
            (Action.ALLOC, 0x10000000 + 8 * MIB, 8 * MIB, 0),
            (Action.FREE_COMPLETED, 0x10000000, 8 * MIB, 0),
            (Action.OOM, MIB, 64 * MIB, 0),
        ]
    )
    sketch = sketch_of(recording_of(history))
    assert [(Op(op).name, key) for op, key in zip(sketch.op.tolist(), sketch.key.tolist(), strict=True)] == [
        *(("ALLOCATE", 0), ("ALLOCATE", 1), ("FREE", 0), ("ALLOCATE", 2))
    ]


def test_an_earlier_request_that_failed_empties_the_cache() -> None:
    """A script would end there; what the failure did to the cache is what stays of it."""
    history = history_of("oom_recover")
    sketch = sketch_of(recording_of(history))
    assert (sketch.op == Op.EMPTY_CACHE).sum() == np.count_nonzero(history.action == Action.OOM) - 1 == 1
    assert not fail_in(sketch.of_rows(np.arange(len(sketch) - 1)), 7742 * MIB).ran_out


def test_expandable_segments_fail_at_a_limit_near_by() -> None:
    """PyTorch's own limit counts otherwise than a card's end; the script says which limit it takes instead."""
    found = reproduce(history_of("variable_length_expandable"), capacity_bytes=2500 * MIB, seconds=0)
    settings = replace(parse_settings("expandable_segments:True"), per_process_memory_fraction=0.5)
    for room in (2500 * MIB, found.room_bytes):
        done = replay(found.sketch.program(), settings, ReplayDevice(total_bytes=2 * room), stop_after_ooms=1)
        assert (done.ran_out, done.done) == (room == found.room_bytes, len(found.sketch))
    assert 2400 * MIB < found.room_bytes < 2500 * MIB
    assert any("while the run's capacity was 2.44 GiB" in note for note in found.notes)
    assert 'else "expandable_segments:True"' in script_of(found)


# ---- nothing of the user's


HOSTILE = 'x"""\n\'\'\'\nimport os; os.system("touch was-here") #\\'


def test_nothing_that_stands_in_a_snapshot_gets_into_the_script() -> None:
    """Names of files, functions, annotations and settings that are code: the script is the same without them."""
    history = history_of("oom_recover")
    table = tuple(Frame(name=HOSTILE, file=HOSTILE, line=frame.line) for frame in history.stacks.table)
    hostile = replace(
        history,
        stacks=replace(history.stacks, table=table),
        annotations=(Annotation(name=HOSTILE, stage="END", time_us=int(history.time_us[10])),),
        settings={**history.settings, "PYTORCH_CUDA_ALLOC_CONF": HOSTILE, HOSTILE: HOSTILE},
    )
    script = script_of(reproduce(hostile))
    assert script == script_of(reproduce(history))
    assert not any("os.system" in line or "was-here" in line for line in script.splitlines())
    names = {frame.file for frame in history.stacks.table} | {frame.name for frame in history.stacks.table}
    assert not [name for name in names if len(name) > 12 and name in script]


def test_settings_are_written_anew() -> None:
    """Blanks and lines in a text that PyTorch accepts do not reach the script either."""
    history = replace(history_of("oom_recover"), settings={"PYTORCH_ALLOC_CONF": "max_split_size_mb :\n\t512\n"})
    assert 'else "max_split_size_mb:512"\n' in script_of(reproduce(history))


@pytest.mark.parametrize(
    ("text", "semantics"),
    [
        ("", "2.11"),
        ("expandable_segments:True", "2.11"),
        ("max_split_size_mb:64,roundup_power2_divisions:8,garbage_collection_threshold:0.8", "2.11"),
        ("roundup_power2_divisions:[64:2,256:8,>:1]", "2.11"),
        ("large_segment_size_mb:64", "2.11"),
        ("large_segment_size_mb:12,max_non_split_rounding_mb:40", "2.11"),
        ("throw_on_cudamalloc_oom:True,expandable_segments_reserve:0.3", "2.15"),
        ("expandable_segments_reserve:40G", "2.15"),
    ],
)
def test_settings_as_text_mean_the_same(text: str, semantics: str) -> None:
    settings = parse_settings(text, semantics=semantics)
    assert parse_settings(text_of_settings(settings), semantics=semantics) == settings
    assert text_of_settings(Settings()) == ""


# ---- the command line


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ullage", "repro", *map(str, arguments)]
    return client.run(line, timeout=900)


def test_the_command_line(tmp_path: Path) -> None:
    """It writes a script that compiles, the same at every run, and prints the counts."""
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    ended = command(recorded("oom_recover"), "-o", first, "--json")
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert answer["cause"] == "truly_full"
    assert (answer["allocations"], answer["recorded_allocations"]) == (2, 448)
    assert (answer["requested_bytes"], answer["room_bytes"]) == (500 * MIB, 7742 * MIB)
    text = command(recorded("oom_recover"), "-o", second)
    assert "2 allocations, of 448 in the recording, fail in the same way." in text.stdout
    assert first.read_bytes() == second.read_bytes()
    compile(first.read_text(), "repro", "exec")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((recorded("normal"),), "no request fails in this recording (at most 1.24 GiB are reserved)"),
        ((recorded("normal"), "--capacity", "2GiB"), "no request fails with --capacity 2.00 GiB: at most"),
        ((recorded("oom"), "--budget", "0"), "--budget 0 is not a time"),
        ((recorded("oom"), "--capacity", "lots"), "--capacity 'lots' is not a size"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: tuple[object, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, nothing on standard output, and no script."""
    with pytest.raises(SystemExit) as ended:
        main(["repro", *map(str, arguments), "-o", str(tmp_path / "repro.py")])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert "Traceback" not in printed.err
    assert list(tmp_path.iterdir()) == []


def test_the_snapshot_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "oom.pickle.gz"
    file.write_bytes(recorded("oom").read_bytes())
    with pytest.raises(SystemExit) as ended:
        main(["repro", str(file), "-o", str(file)])
    assert ended.value.code == 2
    assert "would replace" in capsys.readouterr().err
    assert file.read_bytes() == recorded("oom").read_bytes()


def test_what_does_not_fail_in_a_script_is_said() -> None:
    """A run whose request succeeds when it is repeated: what happened, and what to give."""
    recording = recording_of(history_of("oom_recover"))
    whole = sketch_of(recording)
    with pytest.raises(UsageError, match="succeeds when a script repeats the run with an empty allocator"):
        Oracle.of(recording, whole.of_rows(np.array([len(whole) - 1])))


@pytest.mark.parametrize("capacity_mib", [None, 700, 2000])
def test_no_capacity_fails_a_run_that_took_nothing_more(capacity_mib: int | None) -> None:
    """What was reserved before recording began stays: less than that is no capacity in which a request fails."""
    history = history_of("normal")
    columns = ("action", "address", "size", "stream", "time_us", "stack")
    later = replace(history, **{name: getattr(history, name)[-2000:] for name in columns}, labels=Labels())
    with pytest.raises(UsageError, match=r"all of the 1\.24 GiB that the run used were reserved before") as refused:
        reproduce(later, capacity_bytes=capacity_mib and capacity_mib * MIB)
    assert "at most" not in str(refused.value)


def test_what_the_driver_is_asked_for_is_said_where_it_decides() -> None:
    """77 MiB - 1 KiB would fit into the 77 MiB that are left; the 78 MiB that PyTorch asks the driver for do not."""
    rows = [(Action.SEGMENT_ALLOC, 1 << 30, 100 * MIB, 0), (Action.ALLOC, 1 << 30, 100 * MIB, 0)]
    rows.append((Action.OOM, 77 * MIB, 77 * MIB - 1024, 0))
    found = reproduce(made_of(rows), keep_sizes=True)
    assert found.cause is Cause.TRULY_FULL
    assert (
        "the request for 77.0 MiB (the allocator requests 78.0 MiB from the driver) fails with 77.0 MiB free"
        in statement_of(found)
    )
    assert "the allocator requests 78.0 MiB from the driver" in " ".join(script_of(found).replace("#", " ").split())
