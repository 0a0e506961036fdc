"""Cache cuDNN's answers on disk, with a folder for each cuDNN version and GPU.

Files are written atomically and never changed, so several processes may share a folder. Files that cannot be read are
ignored. A folder is not used if other users can write to it.
"""

import hashlib
import os
from pathlib import Path
from typing import Final

from ullage.base.own_files import OwnFolder, SharedFolderError

_LARGEST_BYTES: Final = 16 << 20
_FORMAT_VERSION: Final = "2"  # The version of the file format; each version has its own folder.


def default_folder() -> Path:
    """Return the cache folder: `ULLAGE_CUDNN_CACHE` if it is set, or else `ullage/cudnn` in the user's cache folder."""
    if given := os.environ.get("ULLAGE_CUDNN_CACHE"):
        return Path(given).absolute()
    return (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ullage" / "cudnn").absolute()


class Cache:
    """A cache of cuDNN's answers, such as workspace sizes, for one cuDNN version and one GPU."""

    def __init__(self, root: Path, *, tag: str, device_json: str) -> None:
        self._folder = root / f"{_FORMAT_VERSION}-{tag}" / hashlib.sha256(device_json.encode()).hexdigest()[:16]
        self._is_open = True

    def get(self, question: str) -> str | None:
        """Return the cached answer to a query, or None if there is none."""
        try:
            with OwnFolder.open(self._folder) as folder:
                data = folder.read_file(_name_of(question), most_bytes=_LARGEST_BYTES)
        except (OSError, SharedFolderError):
            return None
        kept, _, digest = data.rpartition(b"\n")
        asked, separator, answer = kept.partition(b"\n\n")
        # A damaged file, or a file of another query with the same name, is ignored.
        is_whole = bool(separator) and _digest(kept) == digest and asked == question.rstrip("\n").encode()
        return answer.decode() if is_whole else None

    def put(self, question: str, answer: str) -> None:
        """Store cuDNN's answer to a query. The answer ends with a newline."""
        if not self._is_open:
            return
        try:
            kept = f"{question.rstrip(chr(10))}\n\n{answer}".encode()
            with OwnFolder.open_or_make(self._folder) as folder:
                folder.write_whole(_name_of(question), kept + b"\n" + _digest(kept))
        except (OSError, SharedFolderError):
            self._is_open = False  # The disk is full or not writable: answers are then computed again.


def _name_of(question: str) -> str:
    return hashlib.sha256(question.encode()).hexdigest()[:32]


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
