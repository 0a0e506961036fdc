"""Writes a memory snapshot into a SQLite database, which users can query with SQL."""

import errno
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import numpy as np

from ullage.base.own_files import whole_file_by_name
from ullage.explaining.analysis.assumption import Assumptions
from ullage.explaining.analysis.recording import line_of_frames
from ullage.recorded.history import ACTIONS, Action, History, RecordedStacks
from ullage.recorded.program import Column
from ullage.running.export.lifetime import BlockTable, SegmentTable, blocks_of, segments_of

# Primary keys begin with the event or block number, not with the device, so that a join by this number alone is fast.
SCHEMA: Final = """
CREATE TABLE events (device INTEGER, event INTEGER, action TEXT, address INTEGER, size_bytes INTEGER, stream INTEGER,
    pool INTEGER, free_bytes INTEGER, time_us INTEGER, stack INTEGER, label TEXT, compile_context TEXT,
    PRIMARY KEY (event, device)) WITHOUT ROWID;
CREATE TABLE blocks (device INTEGER, block INTEGER, address INTEGER, size_bytes INTEGER, requested_bytes INTEGER,
    stream INTEGER, segment INTEGER, born INTEGER, freed INTEGER, died INTEGER, stack INTEGER, line TEXT,
    PRIMARY KEY (block, device)) WITHOUT ROWID;
CREATE TABLE segments (device INTEGER, segment INTEGER, address INTEGER, size_bytes INTEGER, stream INTEGER,
    pool INTEGER, is_small INTEGER, is_expandable INTEGER, born INTEGER, died INTEGER, stack INTEGER,
    PRIMARY KEY (segment, device)) WITHOUT ROWID;
CREATE TABLE stacks (stack INTEGER, depth INTEGER, frame INTEGER, PRIMARY KEY (stack, depth)) WITHOUT ROWID;
CREATE TABLE frames (frame INTEGER PRIMARY KEY, function TEXT, file TEXT, line INTEGER);
"""
_NAMES: Final = {action: name for name, action in ACTIONS.items() if name != "free"} | {Action.OTHER: "other"}


def write_database(
    path: Path,
    devices: Mapping[int, History],
    assumptions: Mapping[int, Assumptions],
    *,
    semantics: str | None = None,
    alloc_conf: str | None = None,
    capacity_bytes: int | None = None,
) -> None:
    """Write the recordings of all devices into a SQLite database. If this fails, no file is left.

    Args:
        path: the path of the database file.
        devices: the recordings, by the index of the device.
        assumptions: the assumptions about what each recording lacks, by the index of the device.
        semantics: the version of the allocator: one of `ullage.recorded.settings.SEMANTICS`.
        alloc_conf: the allocator settings, for a snapshot that does not record them.
        capacity_bytes: the bytes that the allocator could reserve at most, for a recording without a failed request.

    Raises:
        OSError: the file cannot be written; no part of it is left.
        SettingsError: `alloc_conf` cannot be parsed.
    """
    with whole_file_by_name(path) as name:
        try:
            # Nobody reads the file before it is complete, so SQLite's own journal is not needed.
            with closing(sqlite3.connect(name, isolation_level=None)) as database:
                database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + SCHEMA + "BEGIN;")
                for device, history in devices.items():
                    rebuilt = assumptions[device].program_of(
                        history, semantics=semantics, alloc_conf=alloc_conf, capacity_bytes=capacity_bytes
                    )
                    segments = segments_of(history, rebuilt)
                    _insert(database, "events", _event_columns(history))
                    _insert(database, "blocks", _block_columns(history, blocks_of(history, rebuilt, segments)))
                    _insert(database, "segments", _segment_columns(history, segments))
                history = next(iter(devices.values()))
                _insert(database, "stacks", _stack_columns(history.stacks))  # all devices share the stacks
                table = history.stacks.table
                rows = (
                    (number, _text(frame.name), _text(frame.file), frame.line) for number, frame in enumerate(table)
                )
                database.executemany("INSERT INTO frames VALUES (?, ?, ?, ?)", rows)
                database.execute("COMMIT")
        except sqlite3.Error as error:
            raise OSError(errno.EIO, f"SQLite: {error}", str(path)) from None


def _insert(database: sqlite3.Connection, table: str, columns: list[Iterable[Any]]) -> None:
    places = ", ".join("?" * len(columns))
    database.executemany(f"INSERT INTO {table} VALUES ({places})", zip(*columns, strict=True))


def _values(column: Column, *, where: Column | None = None) -> list[Any]:
    is_known = column >= 0 if where is None else where
    if is_known.all():
        found: list[Any] = column.tolist()
        return found
    objects = column.astype(object)
    objects[~is_known] = None
    return list(objects.tolist())


def _text(text: str) -> str:
    # a snapshot may contain lone surrogates, which are not valid UTF-8
    return text.encode(errors="replace").decode()


def _same(value: int, length: int) -> list[int]:
    return [value] * length


def _event_columns(history: History) -> list[Iterable[Any]]:
    length, labels = len(history), history.labels
    failed = history.action == Action.OOM
    names = [_NAMES[action] for action in Action]
    texts = (*map(_text, labels.texts), None)  # index -1 selects the last text, None
    none = np.full(length, -1, np.int64)
    return [
        _same(history.device, length),
        range(length),
        [names[action] for action in history.action.tolist()],
        _values(history.address, where=~failed),
        history.size.tolist(),
        history.stream.tolist(),
        labels.pool.tolist() if len(labels.pool) else _same(0, length),
        _values(history.address, where=failed),
        _values(history.time_us),
        _values(history.stack),
        [texts[number] for number in (labels.metadata if len(labels.metadata) else none).tolist()],
        [texts[number] for number in (labels.context if len(labels.context) else none).tolist()],
    ]


def _block_columns(history: History, blocks: BlockTable) -> list[Iterable[Any]]:
    lines: dict[int, str | None] = {-1: None}
    stacks = blocks.stack.tolist()
    for stack in set(stacks) - {-1}:
        lines[stack] = _text(line_of_frames(history.stacks.frames_of(stack)))
    return [
        _same(history.device, len(stacks)),
        range(len(stacks)),
        blocks.address.tolist(),
        blocks.size.tolist(),
        blocks.requested.tolist(),
        blocks.stream.tolist(),
        *(_values(column) for column in (blocks.segment, blocks.born, blocks.freed, blocks.died, blocks.stack)),
        [lines[stack] for stack in stacks],
    ]


def _segment_columns(history: History, segments: SegmentTable) -> list[Iterable[Any]]:
    plain = (segments.address, segments.size, segments.stream, segments.pool, segments.is_small, segments.is_expandable)
    return [
        _same(history.device, len(segments.address)),
        range(len(segments.address)),
        *(column.tolist() for column in plain),
        *(_values(column) for column in (segments.born, segments.died, segments.stack)),
    ]


def _stack_columns(stacks: RecordedStacks) -> list[Iterable[Any]]:
    lengths = np.diff(stacks.starts)
    depth = np.arange(len(stacks.frames)) - np.repeat(stacks.starts[:-1], lengths)
    return [np.repeat(np.arange(len(lengths)), lengths).tolist(), depth.tolist(), stacks.frames.tolist()]
