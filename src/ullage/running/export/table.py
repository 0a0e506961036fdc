"""Writes rows of a run into a file: CSV, which can be read at any time, or Parquet, complete at the run's end."""

import csv
import io
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import UnionType
from typing import Any, Final, Protocol, get_args, get_type_hints

from ullage.base.own_files import begin_file, new_file
from ullage.running.export.drain import Drain, SampleRow

_GROUP_ROWS: Final = 1 << 14
"""The number of rows of a row group; until it is full, rows are kept in memory."""


class File(Protocol):
    """A file into which rows are written."""

    def add(self, rows: list[SampleRow]) -> None:
        """Add all of these rows, or none.

        Raises:
            OSError: they cannot be written.
        """

    def close(self) -> None:
        """Complete the file.

        Raises:
            OSError: it cannot be written.
        """


class SampleTable:
    """Writes new samples of a folder into a file. If that fails, it says so once, and retries the next time."""

    def __init__(self, path: Path, make: Callable[[Path], File], notify: Callable[[str], Any]) -> None:
        """Write to a path; the file is made at the first update."""
        self._path = path.absolute()
        self._name = path
        self._make = make
        self._notify = notify
        self._file: File | None = None
        self._drain = Drain()
        self._has_told = False

    def update(self, folder: Path) -> None:
        """Write new rows."""
        try:
            self._file = self._file or self._make(self._path)
            self._file.add(self._drain.rows(folder))
            self._drain.commit()
        except OSError as error:
            self._fail(error)

    def finish(self, folder: Path) -> None:
        """Write the remaining rows, and report how many samples are missing."""
        self.update(folder)
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:
            self._fail(error)
        for process, number in self._drain.lost.items():
            self._notify(
                f"{number:,} samples of {process} are not in {self._name}: they were overwritten by later ones"
            )

    def _fail(self, error: OSError) -> None:
        if not self._has_told:
            self._has_told = True
            self._notify(f"{self._name} cannot be written ({error.strerror or error}); the run continues")


class CsvFile:
    """A CSV file to which whole lines are appended."""

    def __init__(self, path: Path) -> None:
        """Make the file, in place of one that is there.

        Raises:
            OSError: it cannot be written.
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
                os.ftruncate(self._descriptor, self._size)  # no half lines
            raise
        self._size += written
        self._head = ""

    def close(self) -> None:
        os.close(self._descriptor)


class ParquetFile:
    """A Parquet file, written in row groups under a temporary name; it can be read once it is closed."""

    def __init__(self, path: Path) -> None:
        """Make the temporary file, in the folder of the final one.

        Raises:
            OSError: it cannot be written.
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
            return  # it is not whole, and cannot become so
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
