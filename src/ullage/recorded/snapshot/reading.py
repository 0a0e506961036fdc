"""A snapshot's file that is read in a thread, while what looks into it is still being loaded."""

import threading
from pathlib import Path
from typing import Any, Final

from ullage.recorded.snapshot.file import read_tables

_ahead: Final[dict[Path, "Reading"]] = {}


class Reading:
    """The tables of one file, as `snapshot.file.read_tables` gives them, read in a thread of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tables: dict[str, Any] | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name=f"reading {path}")
        self._thread.start()

    def result(self) -> dict[str, Any]:
        """Return the tables once they are read; they are handed over, and held here no longer.

        Raises:
            SnapshotError: the file cannot be read, is damaged, or is plainly no snapshot.
            PickleError: it is refused, as a pickle that asks for something to be run.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        tables, self._tables = self._tables, None
        assert tables is not None, "handed over before"
        return tables

    def _read(self) -> None:
        try:
            self._tables = read_tables(self._path)
        except BaseException as error:  # raised where the tables are asked for
            self._error = error


def read_ahead(path: Path) -> None:
    """Begin to read a file that is likely to be asked for."""
    _ahead[path] = Reading(path)


def reading_of(path: Path) -> Reading:
    """Return the reading of a file: the one that was begun ahead, or one that begins now."""
    return _ahead.pop(path, None) or Reading(path)
