"""What cuDNN has answered once, on disk: one file a question, below a folder for its version and the card.

Files are written whole and never changed, so any number of processes may use one folder at once; a file that cannot be
read is no answer, and a folder that cannot be written is left alone.
"""

import hashlib
import os
from pathlib import Path
from typing import Final

from ullage._output import write_whole

_FORM: Final = "1"  # of what is written; another number, another folder


def default_folder() -> Path:
    """Return where answers are kept: `ULLAGE_CUDNN_CACHE`, or `ullage/cudnn` in the user's folder of caches."""
    if given := os.environ.get("ULLAGE_CUDNN_CACHE"):
        return Path(given).absolute()
    return (Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ullage" / "cudnn").absolute()


class Cache:
    """The answers for one cuDNN and one card."""

    def __init__(self, root: Path, *, tag: str, device_json: str) -> None:
        """Use a folder; it is made when there is something to keep."""
        self._folder = root / f"{_FORM}-{tag}" / hashlib.sha256(device_json.encode()).hexdigest()[:16]
        self._is_open = True

    def get(self, question: str) -> str | None:
        """Return what was answered to a question; None where nothing was."""
        try:
            text = self._path(question).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
        asked, separator, answer = text.partition("\n\n")
        # A file that another question of the same name has written, or half of one, is no answer.
        return answer if separator and asked == question.rstrip("\n") and answer.endswith("\n") else None

    def put(self, question: str, answer: str) -> None:
        """Keep an answer, which ends with a line's end."""
        if not self._is_open:
            return
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(question), f"{question.rstrip(chr(10))}\n\n{answer}".encode())
        except OSError:
            self._is_open = False  # full, or not ours to write: every answer is asked for again

    def _path(self, question: str) -> Path:
        return self._folder / hashlib.sha256(question.encode()).hexdigest()[:32]
