"""A recording as tables of SQLite: what they sum to is what the snapshot and the replay say."""

import json
import resource
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import ullage
from tests.explaining.reproduction.test_reproduction import made_of
from ullage.base.errors import UsageError
from ullage.explaining.analysis.assumption import Assumptions, closest
from ullage.explaining.analysis.recording import operation_name, short_line, users_frame
from ullage.explaining.difference.holding import peak_allocated_bytes
from ullage.recorded.history import Action, History, Segment
from ullage.recorded.snapshot.snapshot import load_snapshot
from ullage.running.export.database import write_database

MIB = 1 << 20
DATA = Path(__file__).parents[2] / "snapshots"
COLUMNS = ("action", "address", "size", "stream", "time_us", "stack")
SNAPSHOTS = sorted(DATA.glob("*.pickle.gz"))


def ask(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(query).fetchall()


def written(path: Path, *histories: History) -> Path:
    devices = {history.device: history for history in histories}
    write_database(path, devices, {device: closest(history) for device, history in devices.items()})
    return path


def late(history: History) -> History:
    """The same recording without its first half, as a full ring has it."""
    half = len(history) // 2
    labels = replace(
        history.labels,
        **{name: getattr(history.labels, name)[half:] for name in ("metadata", "context", "pool")},
    )
    return replace(history, **{name: getattr(history, name)[half:] for name in COLUMNS}, labels=labels)


PEAK = """
SELECT max(level) FROM (
    SELECT sum(bytes) OVER (ORDER BY event) AS level FROM (
        SELECT coalesce(born, -1) AS event, size_bytes AS bytes FROM blocks
        UNION ALL SELECT freed, -size_bytes FROM blocks WHERE freed IS NOT NULL))
"""


@pytest.mark.parametrize("is_late", [False, True], ids=["whole", "late"])
@pytest.mark.parametrize("file", SNAPSHOTS, ids=lambda path: path.name.partition(".")[0])
def test_the_tables_sum_to_the_snapshot(file: Path, tmp_path: Path, *, is_late: bool) -> None:
    history = load_snapshot(file).devices[0]
    history = late(history) if is_late else history
    path = written(tmp_path / "run.sqlite", history)
    assert ask(path, "SELECT count(*), min(event), max(event) FROM events") == [(len(history), 0, len(history) - 1)]
    there = [block for segment in history.segments for block in segment.blocks if block.state != "inactive"]
    expected = Counter((block.address, block.size, block.requested, block.stack) for block in there)
    alive = ask(path, "SELECT address, size_bytes, requested_bytes, coalesce(stack, -1) FROM blocks WHERE died IS NULL")
    assert Counter(row[:3] for row in alive) == Counter(row[:3] for row in expected.elements())
    if not is_late:
        assert Counter(alive) == expected
        assert ask(path, PEAK) == [(peak_allocated_bytes(history),)]
    outside = """
        SELECT count(*) FROM blocks LEFT JOIN segments USING (device, segment)
        WHERE NOT (blocks.address BETWEEN segments.address AND segments.address + segments.size_bytes - 1)
            OR coalesce(blocks.born, -1) < coalesce(segments.born, -1) OR blocks.born > segments.died"""
    assert ask(path, outside) == [(0,)]
    if "expandable" not in file.name:
        assert ask(path, "SELECT count(*) FROM blocks WHERE segment IS NULL") == [(0,)]
        last = ask(path, "SELECT address, size_bytes FROM segments WHERE died IS NULL ORDER BY address")
        assert last == sorted((segment.address, segment.size) for segment in history.segments)


def test_events_and_stacks_are_those_of_the_file(tmp_path: Path) -> None:
    history = load_snapshot(DATA / "oom.pickle.gz").devices[0]
    path = written(tmp_path / "run.sqlite", history)
    failed = ask(path, "SELECT size_bytes, address, free_bytes, stack FROM events WHERE action = 'oom'")
    assert len(failed) == 1
    row = int((history.action == Action.OOM).nonzero()[0][0])
    assert failed[0] == (int(history.size[row]), None, int(history.address[row]), int(history.stack[row]))
    for stack in {int(history.stack[row]), int(history.stack.max())}:
        frames = ask(
            path,
            f"SELECT function, file, line FROM stacks JOIN frames USING (frame) WHERE stack = {stack} ORDER BY depth",
        )
        assert frames == [(frame.name, frame.file, frame.line) for frame in history.stacks.frames_of(stack)]
    lines = dict(ask(path, "SELECT DISTINCT stack, line FROM blocks WHERE stack IS NOT NULL"))
    assert len(lines) > 10
    for stack, line in lines.items():
        frames = history.stacks.frames_of(stack)
        frame = users_frame(frames)
        assert line == (short_line(frame) if frame else operation_name(frames))


def test_a_block_waits_for_another_stream_between_its_free_and_its_end(tmp_path: Path) -> None:
    first, second = 0x10000000, 0x10200000
    history = made_of(
        [
            (Action.SEGMENT_ALLOC, first, 20 * MIB, 0),
            (Action.ALLOC, first, 2 * MIB - 100, 0),
            (Action.FREE_REQUESTED, first, 2 * MIB - 100, 0),
            (Action.ALLOC, second, 2 * MIB, 0),
            (Action.FREE_COMPLETED, first, 2 * MIB - 100, 0),
            (Action.FREE_REQUESTED, second, 2 * MIB, 0),
        ]
    )
    path = written(tmp_path / "run.sqlite", history)
    assert ask(path, "SELECT address, size_bytes, requested_bytes, segment, born, freed, died FROM blocks") == [
        (first, 2 * MIB, 2 * MIB - 100, 0, 1, 2, 4),
        (second, 2 * MIB, 2 * MIB, 0, 3, 5, None),
    ]


def test_a_block_that_waited_when_recording_began_was_freed_before(tmp_path: Path) -> None:
    """Only its end is recorded: that it was freed then is not said, for it had been before."""
    first, second = 0x10000000, 0x10200000
    rows = [
        (Action.FREE_COMPLETED, first, 2 * MIB, 0),
        (Action.FREE_REQUESTED, second, 2 * MIB, 0),
        (Action.FREE_COMPLETED, second, 2 * MIB, 0),
    ]
    history = replace(made_of(rows), segments=(_segment(first, 20 * MIB, is_expandable=False),))
    path = written(tmp_path / "run.sqlite", history)
    assert ask(path, "SELECT address, born, freed, died FROM blocks") == [
        (first, None, None, 0),
        (second, None, 1, 2),
    ]
    of_2022 = replace(history, **{name: getattr(history, name)[[0]] for name in COLUMNS})
    path = written(tmp_path / "2022.sqlite", of_2022)
    assert ask(path, "SELECT address, born, freed, died FROM blocks") == [(first, None, 0, 0)]


def _segment(address: int, size: int, *, is_expandable: bool) -> Segment:
    return Segment(address=address, size=size, stream=0, is_large=True, is_expandable=is_expandable, pool=0, blocks=())


PAGE, FIRST, SECOND = 20 * MIB, 0x10000000, 0x9000000000
LIVES = "SELECT address, size_bytes, born, died FROM segments ORDER BY address, died"


def test_an_expandable_segment_that_gave_everything_back_has_died(tmp_path: Path) -> None:
    rows = [
        (Action.SEGMENT_UNMAP, FIRST + PAGE, PAGE, 0),
        (Action.SEGMENT_UNMAP, FIRST, PAGE, 0),
        (Action.SEGMENT_MAP, SECOND, PAGE, 0),
        (Action.SEGMENT_MAP, SECOND + PAGE, PAGE, 0),
        (Action.SEGMENT_UNMAP, SECOND, 2 * PAGE, 0),
        (Action.SEGMENT_MAP, SECOND, PAGE, 0),
        (Action.ALLOC, SECOND, PAGE, 0),
    ]
    history = replace(made_of(rows), segments=(_segment(SECOND, PAGE, is_expandable=True),))
    path = written(tmp_path / "run.sqlite", history)
    assert ask(path, LIVES) == [
        (FIRST, 2 * PAGE, None, 1),
        (SECOND, PAGE, 5, None),
        (SECOND, 2 * PAGE, 2, 4),
    ]
    assert ask(path, "SELECT segments.born FROM blocks JOIN segments USING (device, segment)") == [(5,)]


def test_an_expandable_segment_that_lost_its_first_pages_is_one_segment(tmp_path: Path) -> None:
    """At the end it begins elsewhere than when recording began, and has a hole."""
    rows = [
        (Action.SEGMENT_UNMAP, FIRST, PAGE, 0),
        (Action.SEGMENT_UNMAP, FIRST + 2 * PAGE, PAGE, 0),
    ]
    stretches = tuple(_segment(FIRST + at * PAGE, PAGE, is_expandable=True) for at in (1, 3))
    path = written(tmp_path / "run.sqlite", replace(made_of(rows), segments=stretches))
    assert ask(path, LIVES) == [(FIRST + PAGE, PAGE, None, None), (FIRST + 3 * PAGE, PAGE, None, None)]


@pytest.mark.parametrize("file", SNAPSHOTS, ids=lambda path: path.name.partition(".")[0])
def test_a_block_is_born_by_an_allocation_and_ends_by_a_free(file: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "run.sqlite", late(load_snapshot(file).devices[0]))
    assert ask(path, "SELECT count(*) FROM blocks WHERE died < freed OR freed <= born") == [(0,)]
    born = ask(path, "SELECT count(*) FROM blocks JOIN events ON event = born WHERE action <> 'alloc'")
    ends = ask(path, "SELECT DISTINCT action FROM blocks JOIN events ON event = died")
    assert (born, ends) == ([(0,)], [("free_completed",)])


def test_every_card_is_there(tmp_path: Path) -> None:
    first = load_snapshot(DATA / "normal.pickle.gz").devices[0]
    path = written(tmp_path / "run.sqlite", first, replace(first, device=1))
    assert ask(path, "SELECT device, count(*) FROM blocks GROUP BY device")[1] == (
        1,
        ask(path, "SELECT count(*) FROM blocks WHERE device = 0")[0][0],
    )


def test_a_state_alone_has_blocks_and_segments(tmp_path: Path) -> None:
    history = load_snapshot(DATA / "normal.pickle.gz").devices[0].without_trace()
    path = written(tmp_path / "run.sqlite", history)
    assert ask(path, "SELECT count(*) FROM events") == [(0,)]
    held = sum(block.size for segment in history.segments for block in segment.blocks if block.state != "inactive")
    assert ask(path, "SELECT sum(size_bytes) FROM blocks WHERE born IS NULL AND died IS NULL") == [(held,)]
    assert ask(path, "SELECT sum(size_bytes) FROM segments") == [(history.reserved_bytes,)]


def test_names_that_are_half_a_letter_are_written(tmp_path: Path) -> None:
    history = load_snapshot(DATA / "normal.pickle.gz").devices[0]
    table = tuple(replace(frame, name="\ud800" + frame.name) for frame in history.stacks.table)
    path = written(tmp_path / "run.sqlite", replace(history, stacks=replace(history.stacks, table=table)))
    assert ask(path, "SELECT count(*) FROM frames WHERE function LIKE '?%'")[0][0] == len(table)


# ---- the command and the function


def command(*arguments: object, most_bytes: int | None = None) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        if most_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    line = [sys.executable, "-m", "ullage", "explain", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=900, preexec_fn=limit)


def test_the_command_writes_it_beside_its_answer(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    ended = command(DATA / "oom.pickle.gz", "--sql", path, "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["cause"] == "truly_full"
    assert f"wrote {path}" in ended.stderr
    assert ask(path, "SELECT count(*) FROM blocks")[0][0] > 100
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.sqlite"]


def test_what_a_recording_lacks_is_looked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(history: History, **options: Any) -> Assumptions:
        asked.append(history.device)
        return closest(history, **options)

    for module in ("ullage.explaining.analysis.assumption", "ullage.explaining.analysis.explain"):
        monkeypatch.setattr(import_module(module), "closest", counted)
    ullage.explain(DATA / "oom.pickle.gz", sql=tmp_path / "run.sqlite")
    assert asked == [0]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    path.write_text("older")
    ended = command(DATA / "variable_length_oom.pickle.gz", "--sql", path, most_bytes=100_000)
    assert ended.returncode == 2, ended.stdout
    assert str(path) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert path.read_text() == "older"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.sqlite"]


def test_what_is_no_snapshot_has_no_tables(tmp_path: Path) -> None:
    log, path = tmp_path / "a.log", tmp_path / "run.sqlite"
    log.write_text("CUDA out of memory. Tried to allocate 2.00 GiB")
    for source in (log, MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")):
        with pytest.raises(UsageError, match="sql= is for a snapshot"):
            ullage.explain(source, sql=path)
    assert command(log, "--sql", path).returncode == 2
    snapshot = DATA / "oom.pickle.gz"
    with pytest.raises(UsageError, match="would replace"):
        ullage.explain(snapshot, sql=snapshot)
    assert not path.exists()
