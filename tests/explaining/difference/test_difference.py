"""Two recorded runs side by side: what grew, by line and by annotation, with sums that agree with the snapshots."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.forked import client
from ullage.base.units import text_of_bytes
from ullage.cli.app import main
from ullage.explaining.difference.describe import describe
from ullage.explaining.difference.difference import ChangeKind, Difference, LineChange, Moment, difference_of
from ullage.explaining.difference.holding import UNNAMED, holding_at_end, holding_at_peak
from ullage.recorded.history import Frame, History, Labels
from ullage.recorded.rebuild import program_of
from ullage.recorded.snapshot.snapshot import load_snapshot

DATA = Path(__file__).parents[2] / "snapshots"
MIB = 1 << 20


def recorded(name: str) -> History:
    return load_snapshot(DATA / f"{name}.pickle.gz").devices[0]


@pytest.fixture(scope="module")
def normal() -> History:
    return recorded("normal")


def edited(history: History, lines: dict[int, int], *, file: str = "workloads.py") -> History:
    """The same run of a file whose lines have other numbers."""
    table = tuple(
        Frame(frame.name, frame.file, lines.get(frame.line, frame.line)) if frame.file.endswith(file) else frame
        for frame in history.stacks.table
    )
    return replace(history, stacks=replace(history.stacks, table=table))


def by_name(changes: tuple[LineChange, ...]) -> dict[str, LineChange]:
    return {change.name: change for change in changes}


@pytest.mark.parametrize("moment", Moment)
def test_the_lines_add_up(normal: History, moment: Moment) -> None:
    """What the lines hold is what is allocated, before and after; so do the annotations; and reserved is its parts."""
    other = recorded("eval_with_grad")
    found = difference_of([normal], [other], moment=moment)
    levels = {level.name: level for level in found.levels}
    for changes in (found.lines, found.annotations):
        assert sum(change.before_bytes for change in changes) == levels["allocated"].before
        assert sum(change.after_bytes for change in changes) == levels["allocated"].after
    parts = [levels[name] for name in ("allocated", "freed, pending", "cached")]
    assert sum(part.after for part in parts) == levels["reserved"].after
    assert [change.grown_bytes for change in found.lines] == sorted(
        (change.grown_bytes for change in found.lines), reverse=True
    )


def test_the_end_is_the_snapshots_own_state(normal: History) -> None:
    found = holding_at_end([normal])
    blocks = [block for segment in normal.segments for block in segment.blocks if block.state == "active_allocated"]
    assert found.allocated_bytes == sum(block.size for block in blocks) > 0
    assert sum(held.blocks for held in found.places.values()) == len(blocks)
    assert found.reserved_bytes == normal.reserved_bytes


def test_the_peak_is_what_pytorch_called_it(normal: History) -> None:
    """torch.cuda.max_memory_allocated() was 1104.0 MiB when it was recorded."""
    found = holding_at_peak([normal])
    assert round(found.allocated_bytes / MIB, 1) == 1104.0
    assert found.reserved_bytes <= normal.reserved_bytes
    assert sum(held.bytes for held in found.places.values()) == found.allocated_bytes


@pytest.mark.parametrize("moment", Moment)
def test_the_headline_says_the_end_reserved_and_the_peak_whatever_is_compared(normal: History, moment: Moment) -> None:
    """A run that holds less at its end may have reserved more, and had a higher peak."""
    other = recorded("oom_recover")
    found = difference_of([normal], [other], moment=moment)
    ends, peaks = ([holding(side) for side in ([normal], [other])] for holding in (holding_at_end, holding_at_peak))
    assert [(level.before, level.after) for level in found.overall] == [
        tuple(held.allocated_bytes for held in ends),
        tuple(held.reserved_bytes for held in ends),
        tuple(held.allocated_bytes for held in peaks),
    ]
    words = [
        f"{text_of_bytes(abs(level.after - level.before))} {'MORE' if level.after > level.before else 'LESS'}"
        for level in found.overall
    ]
    assert describe(found).headline == f"{words[0]} AT THE END, {words[1]} RESERVED, {words[2]} AT THE PEAK"


def test_a_peak_that_nobody_recorded_is_not_told(normal: History) -> None:
    state = replace(normal, **{name: getattr(normal, name)[:0] for name in ("action", "address", "size", "stream")})
    state = replace(state, time_us=normal.time_us[:0], stack=normal.stack[:0], labels=Labels())
    found = difference_of([state], [state])
    assert [level.name for level in found.overall] == ["allocated at the end", "reserved at the end"]
    assert describe(found).headline == "AS MUCH AS BEFORE"


def test_a_run_and_itself(normal: History) -> None:
    found = difference_of([normal], [normal])
    assert all(change.kind is ChangeKind.SAME and change.grown_bytes == 0 for change in found.lines)
    assert not found.notes


def test_lines_that_moved_together_are_the_same_lines(normal: History) -> None:
    """Three lines were put above everything: nothing grew, and each line says where it was."""
    found = difference_of([normal], [edited(normal, {line: line + 3 for line in range(1, 200)})])
    moved = [change for change in found.lines if change.kind is ChangeKind.MOVED]
    assert moved
    assert all(change.grown_bytes == 0 for change in found.lines)
    assert {change.kind for change in found.lines} <= {ChangeKind.SAME, ChangeKind.MOVED}
    for change in moved:
        assert change.moved_from is not None
        assert int(change.name.rpartition(":")[2]) == int(change.moved_from.rpartition(":")[2]) + 3


@pytest.mark.parametrize(
    ("before", "after", "moved", "kinds"),
    [
        # An edit in the middle: what is above it stays, what is below moves.
        ([10, 20, 30, 40], [10, 20, 32, 42], {30: 32, 40: 42}, {}),
        # A function's only line, wherever it is now.
        ([10], [25], {10: 25}, {}),
        # One line alone of several that are left may as well be another.
        (
            [10, 20],
            [11, 35],
            {},
            {10: ChangeKind.VANISHED, 20: ChangeKind.VANISHED, 11: ChangeKind.NEW, 35: ChangeKind.NEW},
        ),
        # What stayed is not taken for what moved into its place.
        ([10, 20], [10, 20, 30], {}, {30: ChangeKind.NEW}),
    ],
)
def test_what_counts_as_moved(
    normal: History, before: list[int], after: list[int], moved: dict[int, int], kinds: dict[int, ChangeKind]
) -> None:
    found = difference_of([made(normal, before)], [made(normal, after)])
    assert {
        int((change.moved_from or "").rpartition(":")[2]): int(change.name.rpartition(":")[2])
        for change in found.lines
        if change.kind is ChangeKind.MOVED
    } == moved
    assert {
        int(change.name.rpartition(":")[2]): change.kind
        for change in found.lines
        if change.kind in (ChangeKind.NEW, ChangeKind.VANISHED)
    } == kinds


def made(history: History, lines: list[int]) -> History:
    """A state in which each line of one function holds one block."""
    blocks = tuple(
        replace(history.segments[0].blocks[0], address=number << 20, size=MIB, state="active_allocated", stack=number)
        for number in range(len(lines))
    )
    whole = np.arange(len(lines) + 1, dtype=np.int64)
    stacks = replace(
        history.stacks,
        starts=whole,
        frames=whole[:-1],
        table=tuple(Frame("train", "C:\\code\\train.py", line) for line in lines),
    )
    nothing = dict.fromkeys(("action", "address", "size", "stream", "time_us", "stack"), np.zeros(0, np.int64))
    segment = replace(history.segments[0], address=0, size=len(lines) * MIB, blocks=blocks)
    return replace(history, stacks=stacks, segments=(segment,), labels=Labels(), annotations=(), **nothing)


def test_paths_of_two_machines_are_the_same_file(normal: History) -> None:
    """Only the last two parts of a path count."""
    elsewhere = tuple(
        Frame(frame.name, frame.file.replace("/home/user", "/mnt/work"), frame.line) for frame in normal.stacks.table
    )
    assert elsewhere != normal.stacks.table
    moved = replace(normal, stacks=replace(normal.stacks, table=elsewhere))
    assert all(change.kind is ChangeKind.SAME for change in difference_of([normal], [moved]).lines)


def test_annotations_name_what_was_allocated_in_them(normal: History) -> None:
    """AdamW keeps two tensors a parameter, which its first step allocates."""
    found = holding_at_end([normal])
    held = found.annotations["Optimizer.step#AdamW.step"]
    parameters = [place for place in found.places if place.line == 6]
    assert len(parameters) == 1
    assert held.bytes == pytest.approx(2 * found.places[parameters[0]].bytes, rel=0.01)
    assert found.annotations[UNNAMED].bytes == found.allocated_bytes - held.bytes


def test_what_the_program_put_on_an_allocation_comes_first(normal: History) -> None:
    labelled = replace(
        normal,
        labels=Labels(metadata=np.zeros(len(normal), np.int64), texts=("fold 3",)),
        annotations=normal.annotations,
    )
    assert holding_at_end([labelled]).annotations.keys() == {"fold 3"}
    found = difference_of([normal], [labelled])
    assert by_name(found.annotations)["fold 3"].kind is ChangeKind.NEW


def test_several_cards_are_added_up(normal: History) -> None:
    second = replace(recorded("eval_with_grad"), device=1)
    found = difference_of([normal], [normal, second])
    allocated = found.levels[0]
    assert allocated.after - allocated.before == holding_at_end([second]).allocated_bytes
    assert any("the GPUs of each snapshot are added up" in note for note in found.notes)


def test_a_state_without_a_trace(normal: History) -> None:
    """Its end is known, and is taken for its peak, which is said."""
    nothing = dict.fromkeys(("action", "address", "size", "stream", "time_us", "stack"), np.zeros(0, np.int64))
    bare = replace(normal, labels=Labels(), **nothing)
    assert difference_of([bare], [normal]).levels[0].after == difference_of([bare], [normal]).levels[0].before
    found = difference_of([bare], [normal], moment=Moment.PEAK)
    assert found.levels[0].before == holding_at_end([normal]).allocated_bytes
    assert any("no trace" in note for note in found.notes)
    assert not program_of(bare).is_whole


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "ullage", "diff", *map(str, arguments)]
    return client.run(line, timeout=900)


def test_the_command_line(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    files = (DATA / "normal.pickle.gz", DATA / "eval_with_grad.pickle.gz")
    ended = command(*files, "--html", page)
    assert ended.returncode == 0, ended.stderr
    assert "MORE" in ended.stdout.splitlines()[1]
    assert "Changes by line of your code" in page.read_text()
    answer = json.loads(command(*files, "--json", "--at", "peak").stdout)
    assert answer["schema"] == 1
    assert answer["moment"] == "peak"
    assert set(answer) - {"schema"} == set(Difference.__slots__)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((DATA / "normal.pickle.gz", "none.pickle"), "none.pickle cannot be read"),
        ((DATA / "normal.pickle.gz",) * 2 + ("--at", "noon"), "--at 'noon' is not a point in time"),
        ((DATA / "normal.pickle.gz",) * 2 + ("--device", "2"), "--device 2 does not have a history"),
        ((DATA / "normal.pickle.gz",) * 2 + ("--html", DATA / "normal.pickle.gz"), "would replace"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: tuple[object, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["diff", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert said in err
