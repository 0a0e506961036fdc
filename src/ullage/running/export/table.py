"""Writes the memory samples of a run into a CSV or Parquet file.

Each process keeps only its latest 4,096 samples. The number of lost samples is reported.
"""

import csv
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Final, NamedTuple, Protocol, get_args, get_type_hints

from ullage.base.own_files import begin_file, new_file
from ullage.running.run_files.facts import RunFacts
from ullage.running.run_files.live import SUFFIX, Live, LiveFileError, read_live

_NAME: Final = re.compile(r"(?:rank(?P<rank>\d+)|process)-(?P<pid>\d+)(?:-\w+)?")
# The number of rows in a row group of the Parquet file. Rows stay in memory until their group is full.
_GROUP_ROWS: Final = 1 << 14


class SampleRow(NamedTuple):
    """One memory sample of one process on one device."""

    time: float
    """The time of the memory sample, in seconds since 1970."""
    rank: int | None
    pid: int
    device: int
    """The index of the device in PyTorch."""
    gpu: str
    """The name of the GPU. Empty if it is unknown."""
    step: int
    """The training step of the memory sample. The first step is 1."""
    is_step_end: bool
    """Whether the sample was taken at the end of a training step. Other samples are taken once a second."""
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    """The peak of allocated bytes since the previous row of the same process and device."""
    inactive_split_bytes: int
    driver_used_bytes: int | None
    """The used memory of the GPU over all processes, in bytes. None if it is unknown."""
    limit_bytes: int | None
    """The memory that the process may reserve on the GPU, in bytes. None if it is unknown."""
    alloc_retries: int
    ooms: int


@dataclass(frozen=True, slots=True)
class _Position:
    samples: int = 0
    lost: int = 0
    # Maps each device to the number of training steps that were complete at its last sample.
    steps: dict[int, int] = field(default_factory=dict)


class Drain:
    """Reads new memory samples from the files of a run's processes."""

    def __init__(self) -> None:
        self._positions: dict[Path, _Position] = {}
        self._next: dict[Path, _Position] = {}

    @property
    def lost(self) -> dict[str, int]:
        """The number of lost samples of each process. The keys are process names, such as "rank3-4711"."""
        return {path.stem: position.lost for path, position in self._positions.items() if position.lost}

    def rows(self, folder: Path) -> list[SampleRow]:
        """Return all samples that are not yet in the file. Call `commit` after writing them."""
        self._next = {}
        rows: list[SampleRow] = []
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            position = self._positions.get(path, _Position())
            try:
                live = read_live(path, since=position.samples, overview=False)
            except (LiveFileError, OSError):  # the file is being created
                continue
            steps = dict(position.steps)
            rows += _rows_of(live, steps)
            lost = position.lost + max(0, live.first - position.samples)
            self._next[path] = _Position(max(live.samples, position.samples), lost, steps)
        return rows

    def commit(self) -> None:
        """Record that all samples from the last call of `rows` are now in the file."""
        self._positions |= self._next


def _rows_of(live: Live, steps: dict[int, int]) -> Iterator[SampleRow]:
    facts = RunFacts.from_json(live.facts)
    rank, pid = _who(live.path, facts)
    cards = {card.index: card for card in facts.cards}
    for sample in live.recent:
        card = cards.get(sample.device)
        is_step_end = sample.step != steps.get(sample.device, 0)
        steps[sample.device] = sample.step
        yield SampleRow(
            time=sample.time,
            rank=rank,
            pid=pid,
            device=sample.device,
            gpu=card.name if card is not None else "",
            step=sample.step if is_step_end else sample.step + 1,
            is_step_end=is_step_end,
            allocated_bytes=sample.allocated_bytes,
            reserved_bytes=sample.reserved_bytes,
            peak_allocated_bytes=sample.peak_bytes,
            inactive_split_bytes=sample.split_bytes,
            driver_used_bytes=sample.used_bytes if sample.used_bytes >= 0 else None,
            limit_bytes=card.limit_bytes if card is not None else None,
            alloc_retries=sample.retries,
            ooms=sample.ooms,
        )


def _who(path: Path, facts: RunFacts) -> tuple[int | None, int]:
    found = _NAME.fullmatch(path.stem)
    if facts.pid or found is None:
        return facts.rank, facts.pid
    return int(found["rank"]) if found["rank"] else None, int(found["pid"])


class File(Protocol):
    """A file for memory samples."""

    def add(self, rows: list[SampleRow]) -> None:
        """Write all rows, or none of them if an error occurs.

        Raises:
            OSError: the rows cannot be written.
        """

    def close(self) -> None:
        """Finish writing, and close the file.

        Raises:
            OSError: the file cannot be written.
        """


class SampleTable:
    """Writes the memory samples of a run into a CSV or Parquet file. If writing fails, the next update retries it."""

    def __init__(self, path: Path, make: Callable[[Path], File], notify: Callable[[str], Any]) -> None:
        self._path = path.absolute()
        self._name = path
        self._make = make
        self._notify = notify
        self._file: File | None = None
        self._drain = Drain()
        self._has_told = False

    def update(self, folder: Path) -> None:
        """Write the new rows."""
        try:
            self._file = self._file or self._make(self._path)
            self._file.add(self._drain.rows(folder))
            self._drain.commit()
        except OSError as error:
            self._fail(error)

    def finish(self, folder: Path) -> None:
        """Write the remaining rows, and report the number of lost samples."""
        self.update(folder)
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:
            self._fail(error)
        for process, number in self._drain.lost.items():
            self._notify(f"{number:,} samples of {process} are missing in {self._name}: newer samples overwrote them")

    def _fail(self, error: OSError) -> None:
        if not self._has_told:
            self._has_told = True
            self._notify(f"{self._name} cannot be written ({error.strerror or error}); the run continues")


class CsvFile:
    """A CSV file of memory samples. Each write appends whole lines."""

    def __init__(self, path: Path) -> None:
        """Create the CSV file. An existing file is replaced.

        Raises:
            OSError: the file cannot be written.
        """
        self._descriptor = new_file(path)
        self._size = 0
        self._head = ",".join(SampleRow._fields) + "\n"

    def add(self, rows: list[SampleRow]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(map(_plain, rows))
        content = (self._head + text.getvalue()).encode()
        try:
            written = 0
            while written < len(content):
                written += os.pwrite(self._descriptor, content[written:], self._size + written)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size)  # remove an incomplete line
            raise
        self._size += written
        self._head = ""

    def close(self) -> None:
        os.close(self._descriptor)


class ParquetFile:
    """A Parquet file of memory samples. It has a temporary name until it is complete."""

    def __init__(self, path: Path) -> None:
        """Create the temporary file in the folder of the final file.

        Raises:
            OSError: the file cannot be written.
        """
        import pyarrow.parquet

        self._arrow: Any = pyarrow
        self._part = begin_file(path)
        self._rows: list[SampleRow] = []
        self._schema = pyarrow.schema(
            [(name, _kind(pyarrow, hint)) for name, hint in get_type_hints(SampleRow).items()]
        )
        self._writer: Any = pyarrow.parquet.ParquetWriter(self._part.file, self._schema)

    def add(self, rows: list[SampleRow]) -> None:
        if self._writer is None:
            return  # the file is incomplete and cannot be completed
        self._rows += rows
        if len(self._rows) >= _GROUP_ROWS:
            self._try(self._write)

    def close(self) -> None:
        if self._writer is not None:
            self._try(self._complete)

    def _write(self) -> None:
        columns = dict(zip(SampleRow._fields, zip(*self._rows, strict=True), strict=True))
        self._writer.write_table(self._arrow.table(columns, schema=self._schema))
        self._rows = []

    def _complete(self) -> None:
        if self._rows:
            self._write()
        self._writer.close()
        self._part.complete()

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError:
            with suppress(OSError):
                self._writer.close()
            self._part.discard()
            self._writer, self._rows = None, []
            raise


def _plain(row: SampleRow) -> tuple[Any, ...]:
    return (f"{row.time:.6f}", *(str(one).lower() if isinstance(one, bool) else one for one in row[1:]))


def _kind(arrow: Any, hint: Any) -> Any:
    kind = get_args(hint)[0] if isinstance(hint, UnionType) else hint
    return {float: arrow.float64(), int: arrow.int64(), str: arrow.string(), bool: arrow.bool_()}[kind]
