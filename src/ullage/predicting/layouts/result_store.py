"""Results by content, in one file of SQLite: a search that was cut off goes on, and two searches share.

A store that cannot be read or written is told of once, in a sentence, and the search goes on without it.
"""

import json
import os
import sqlite3
import threading
import time
import zlib
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

from ullage.base.errors import UllageError, UsageError
from ullage.base.own_files import OwnFolder

_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, made REAL, result BLOB) WITHOUT ROWID"
_WAIT_SECONDS: Final = 10.0
_NAME: Final = "results.sqlite"
NONE: Final = "none"
"""The value of --store with which nothing is kept."""


def default_path() -> Path:
    """Return the file in the user's cache folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (home / "ullage" / "results" / _NAME).absolute()


class ResultStore(AbstractContextManager["ResultStore"]):
    """Keeps results, for any number of threads and processes; a context."""

    def __init__(self, path: Path | None) -> None:
        """Open a store; it is made where it is missing.

        Args:
            path: of the file; None: nothing is kept.
        """
        self.path = path
        self.problem: str | None = None
        """Why nothing more is kept, as a sentence; None as long as all goes well."""
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        if path is not None:
            try:
                self._database = _opened(path)
            except (sqlite3.Error, OSError, UllageError) as error:
                self._give_up(error)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._close()

    def get(self, key: str) -> dict[str, Any] | None:
        """Return what is kept under a key; None where there is nothing."""
        with self._lock:
            if self._database is None:
                return None
            try:
                row = self._database.execute("SELECT result FROM results WHERE key = ?", (key,)).fetchone()
            except sqlite3.Error as error:
                self._give_up(error)
                return None
        try:
            kept = json.loads(zlib.decompress(row[0])) if row is not None else None
        except (zlib.error, ValueError, TypeError):
            return None
        return kept if isinstance(kept, dict) else None

    def put(self, key: str, result: dict[str, Any]) -> None:
        """Keep a result, at once and whole."""
        packed = zlib.compress(json.dumps(result).encode())
        with self._lock:
            if self._database is None:
                return
            try:
                with self._database:
                    self._database.execute(
                        "INSERT OR REPLACE INTO results VALUES (?, ?, ?)", (key, time.time(), packed)
                    )
            except sqlite3.Error as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Go on without the store."""
        text = str(error).partition("\n")[0] or type(error).__name__
        self.problem = f"results are not kept any more: {text} ({self.path}); the search goes on without"
        self._close()

    def _close(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None


def store_path(store: str | Path | None) -> Path | None:
    """Return the file that `--store` means: the user's own for None, no file for "none".

    Raises:
        UsageError: it is a folder, or in a folder that is not there.
    """
    if store is None:
        return default_path()
    if str(store) == NONE:
        return None
    path = Path(store).absolute()
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"--store {path} is no file; expected the path of one in a folder that is there, or none")
    return path


def _opened(path: Path) -> sqlite3.Connection:
    if path == default_path():
        OwnFolder.open_or_make(path.parent).close()
    database = sqlite3.connect(path, timeout=_WAIT_SECONDS, check_same_thread=False)
    try:
        database.execute(_SCHEMA)
    except sqlite3.Error:
        database.close()
        raise
    return database
