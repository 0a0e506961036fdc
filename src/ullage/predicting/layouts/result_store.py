"""Store the results of runs in an SQLite file, so that later searches can reuse them.

If the store cannot be used, the search continues without it, and a note says so once.
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
"""The value of `store=` that turns the result store off."""


def default_path() -> Path:
    """Return the path of the result store in the user's cache folder."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (home / "ullage" / "results" / _NAME).absolute()


class ResultStore(AbstractContextManager["ResultStore"]):
    """Stores the results of runs. Several threads and processes can use it at the same time."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.problem: str | None = None
        """The reason why results are no longer stored, or None while the store works."""
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
        """Return the result that is stored under a key, or None if the key is missing."""
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
        """Store the result of a run immediately, in one transaction."""
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
        text = str(error).partition("\n")[0] or type(error).__name__
        self.problem = f"results are no longer stored: {text} ({self.path}); the search continues without the store"
        self._close()

    def _close(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
            self._database = None


def store_path(store: str | Path | None) -> Path | None:
    """Return the path of the result store, or None if `store` is "none".

    By default, the store is in the user's cache folder.

    Raises:
        UsageError: the path is a folder, or its parent folder does not exist.
    """
    if store is None:
        return default_path()
    if str(store) == NONE:
        return None
    path = Path(store).absolute()
    if path.is_dir() or not path.parent.is_dir():
        raise UsageError(f"store={path} is not a file; expected the path of a file in an existing folder, or none")
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
