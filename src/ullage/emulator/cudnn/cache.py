"""The answers of cuDNN on disk: one file for each question, in a folder for its version and the card.

Files are written whole and never changed, so any number of processes may use one folder at once; a file that cannot be
read is no answer, and a folder that cannot be written is left alone.
"""

import hashlib
import os
import stat
from pathlib import Path
from typing import Final

from ullage._output import write_whole

_LARGEST_BYTES: Final = 16 << 20
_FORMAT_VERSION: Final = "2"  # of what is written; another number, another folder


def default_folder() -> Path:
    """Return the folder of answers: `ULLAGE_CUDNN_CACHE`, or `ullage/cudnn` in the user's cache folder."""
    if given := os.environ.get("ULLAGE_CUDNN_CACHE"):
        return Path(given).absolute()
    return (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ullage" / "cudnn").absolute()


class Cache:
    """The cached answers of one cuDNN for one card."""

    def __init__(self, root: Path, *, tag: str, device_json: str) -> None:
        """Use a folder; it is created with the first answer."""
        self._folder = root / f"{_FORMAT_VERSION}-{tag}" / hashlib.sha256(device_json.encode()).hexdigest()[:16]
        self._is_open = True

    def get(self, question: str) -> str | None:
        """Return the answer to a question; None where there is none."""
        try:
            data = _read_file(self._path(question))
        except OSError:
            return None
        kept, _, digest = data.rpartition(b"\n")
        asked, separator, answer = kept.partition(b"\n\n")
        # One that is damaged, or that another question of the same name has written, is no answer.
        is_whole = bool(separator) and _digest(kept) == digest and asked == question.rstrip("\n").encode()
        return answer.decode() if is_whole else None

    def put(self, question: str, answer: str) -> None:
        """Store an answer, which ends with a newline."""
        if not self._is_open:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            kept = f"{question.rstrip(chr(10))}\n\n{answer}".encode()
            write_whole(self._path(question), kept + b"\n" + _digest(kept))
        except OSError:
            self._is_open = False  # full, or not ours to write: every answer is asked for again

    def _path(self, question: str) -> Path:
        return self._folder / hashlib.sha256(question.encode()).hexdigest()[:32]


def _read_file(path: Path) -> bytes:
    """Read a regular file; a pipe or device of that name is not waited for."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise FileNotFoundError(path)
        return file.read(_LARGEST_BYTES)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
