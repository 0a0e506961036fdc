"""Rules of the tables: every sample once, in lines that are whole, whatever the disk and the process do."""

import csv
import errno
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet
import pytest

from ullage.running.export.table import CsvFile, Drain, ParquetFile, SampleRow, SampleTable
from ullage.running.run_files.facts import RunCard, RunFacts
from ullage.running.run_files.live import RECENT, LiveWriter, Sample

CARD = RunCard(index=0, name="Tesla T4", uuid="GPU-0", total_bytes=16 << 30, limit_bytes=15 << 30)


def _sample(step: int, *, device: int = 0, peak: int = 3) -> Sample:
    return Sample(step, 1000.0 + step, device, 1, 2, peak, -1, 4, 5, 6)


def _process(folder: Path, name: str, **facts: object) -> LiveWriter:
    writer = LiveWriter(folder / f"{name}.live")
    told = RunFacts(pid=int(name.rpartition("-")[2]), command=(), host="here", started=1.0, told=2.0, cards=(CARD,))
    writer.write_facts(told.to_json() | facts)
    return writer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@contextmanager
def _no_file_beyond(size: int) -> Iterator[None]:
    """As on a full disk, but for the error's number."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def _lines(path: Path) -> list[dict[str, str]]:
    text = path.read_text()
    assert text.endswith("\n")
    return list(csv.DictReader(text.splitlines()))


def test_every_sample_comes_once(folder: Path, tmp_path: Path) -> None:
    """Of all processes, those that come later too; at any moment the file has whole lines."""
    told: list[str] = []
    table = SampleTable(tmp_path / "run.csv", CsvFile, told.append)
    table.update(folder)
    assert (tmp_path / "run.csv").read_text() == ",".join(SampleRow._fields) + "\n"
    writers = [_process(folder, "rank0-71", rank=0)]
    for look in range(4):
        if look == 2:
            writers.append(_process(folder, "rank1-72", rank=1))
        for writer in writers:
            for step in range(1000 * look, 1000 * look + 1000):
                writer.add(_sample(step + 1))
        table.update(folder)
        assert len(_lines(tmp_path / "run.csv")) == [1000, 2000, 4000, 6000][look]
    table.finish(folder)
    lines = _lines(tmp_path / "run.csv")
    assert [int(line["step"]) for line in lines if line["rank"] == "0"] == list(range(1, 4001))
    assert [int(line["step"]) for line in lines if line["rank"] == "1"] == list(range(2001, 4001))
    assert lines[-1] == {
        "time": "5000.000000", "rank": "1", "pid": "72", "device": "0", "gpu": "Tesla T4", "step": "4000",
        "is_step_end": "true", "allocated_bytes": "1", "reserved_bytes": "2", "peak_allocated_bytes": "3",
        "inactive_split_bytes": "4", "driver_used_bytes": "", "limit_bytes": str(15 << 30), "alloc_retries": "5",
        "ooms": "6",
    }  # fmt: skip
    assert told == []


def test_samples_within_a_step_are_of_that_step(folder: Path) -> None:
    """A live file numbers by the steps that have ended; rows say in which step a peak came up, for each device."""
    writer = _process(folder, "process-9")
    drain = Drain()
    for step in (0, 0, 1, 1):
        writer.add(_sample(step))
    writer.add(_sample(1, device=1))
    first = drain.rows(folder)
    drain.commit()
    for step in (1, 2, 3, 3):
        writer.add(_sample(step))
    rows = first + drain.rows(folder)
    steps = [(row.step, row.is_step_end) for row in rows if row.device == 0]
    assert steps == [
        *[(1, False), (1, False), (1, True), (2, False)],
        *[(2, False), (2, True), (3, True), (4, False)],
    ]
    assert [(row.step, row.is_step_end, row.gpu, row.limit_bytes) for row in rows if row.device == 1] == [
        (1, True, "", None)
    ]


def test_a_process_that_was_killed_before_it_told_anything_has_its_number(folder: Path) -> None:
    """Its file's name has it."""
    LiveWriter(folder / "rank3-77.live").add(_sample(1))
    LiveWriter(folder / "process-78.live").add(_sample(1))
    assert [(row.rank, row.pid) for row in Drain().rows(folder)] == [(None, 78), (3, 77)]


def test_what_was_too_fast_is_said(folder: Path, tmp_path: Path) -> None:
    """More samples than a file keeps, between two looks: the table has a gap, and its size is told."""
    told: list[str] = []
    table = SampleTable(tmp_path / "run.csv", CsvFile, told.append)
    writer = _process(folder, "rank2-70", rank=2)
    for step in range(1, 11):
        writer.add(_sample(step))
    table.update(folder)
    for step in range(11, RECENT + 111):
        writer.add(_sample(step))
    table.finish(folder)
    steps = [int(line["step"]) for line in _lines(tmp_path / "run.csv")]
    assert steps == [*range(1, 11), *range(112, RECENT + 111)]
    assert told == [f"101 samples of rank2-70 are missing in {tmp_path}/run.csv: newer samples overwrote them"]


def test_a_full_disk_leaves_whole_lines_and_is_said_once(folder: Path, tmp_path: Path) -> None:
    """What could not be written is written when there is room again: none is missing, none is there twice."""
    told: list[str] = []
    path = tmp_path / "run.csv"
    table = SampleTable(path, CsvFile, told.append)
    writer = _process(folder, "process-5")
    for step in range(1, 101):
        writer.add(_sample(step))
    table.update(folder)
    with _no_file_beyond(path.stat().st_size + 1000):
        for step in range(101, 201):
            writer.add(_sample(step))
        table.update(folder)
        assert [int(line["step"]) for line in _lines(path)] == list(range(1, 101))
        table.update(folder)
    assert len(told) == 1
    assert told[0].startswith(f"{path} cannot be written (")
    table.finish(folder)
    assert [int(line["step"]) for line in _lines(path)] == list(range(1, 201))
    assert len(told) == 1


def test_parquet_has_what_csv_has(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several groups of rows, with types, and what is not known as null; there is no file before the end."""
    monkeypatch.setattr("ullage.running.export.table._GROUP_ROWS", 1500)
    told: list[str] = []
    csv_table = SampleTable(tmp_path / "run.csv", CsvFile, told.append)
    table = SampleTable(tmp_path / "run.parquet", ParquetFile, told.append)
    writer = _process(folder, "process-5")
    for look in range(9):
        for step in range(300 * look, 300 * look + 300):
            writer.add(_sample(step + 1))
        for one in (table, csv_table):
            one.update(folder)
    assert not (tmp_path / "run.parquet").exists()
    for one in (table, csv_table):
        one.finish(folder)
    read = pyarrow.parquet.read_table(tmp_path / "run.parquet")
    assert pyarrow.parquet.ParquetFile(tmp_path / "run.parquet").num_row_groups == 2
    assert read.column("rank").null_count == read.num_rows == 2700
    rows = [
        {
            name: "" if value is None else str(value).lower() if value is True else str(value)
            for name, value in row.items()
        }
        for row in read.drop_columns(["time", "gpu"]).to_pylist()
    ]
    lines = [{name: line[name] for name in rows[0]} for line in _lines(tmp_path / "run.csv")]
    assert rows == lines
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.csv", "run.parquet"]
    assert told == []


def test_a_run_without_samples_leaves_an_empty_table(folder: Path, tmp_path: Path) -> None:
    """What reads it finds columns and no rows."""
    for name, kind in (("run.csv", CsvFile), ("run.parquet", ParquetFile)):
        SampleTable(tmp_path / name, kind, print).finish(folder)
    assert _lines(tmp_path / "run.csv") == []
    read = pyarrow.parquet.read_table(tmp_path / "run.parquet")
    assert (read.num_rows, read.column_names) == (0, list(SampleRow._fields))


def test_a_parquet_file_that_cannot_be_written_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be made whole any more: its part is removed, that is said once, and the next looks do nothing."""
    told: list[str] = []
    table = SampleTable(tmp_path / "run.parquet", ParquetFile, told.append)
    writer = _process(folder, "process-5")
    monkeypatch.setattr("ullage.running.export.table._GROUP_ROWS", 1500)
    with _no_file_beyond(2000):
        for look in range(6):
            for step in range(300 * look, 300 * look + 300):
                writer.add(_sample(step + 1, peak=step * 7919 % (1 << 30)))
            table.update(folder)
    table.update(folder)
    table.finish(folder)
    assert len(told) == 1
    assert "run.parquet cannot be written (" in told[0]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_may_not_be_written_is_said(folder: Path, tmp_path: Path) -> None:
    """The run goes on, and a file is made as soon as one can be."""
    told: list[str] = []
    table = SampleTable(tmp_path / "later" / "run.csv", CsvFile, told.append)
    for _ in range(2):
        table.update(folder)
    assert told == [f"{tmp_path}/later/run.csv cannot be written ({os.strerror(errno.ENOENT)}); the run continues"]
    (tmp_path / "later").mkdir()
    table.finish(folder)
    assert _lines(tmp_path / "later" / "run.csv") == []
