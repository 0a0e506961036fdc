"""Whether a file named by a recording, log or traceback is the user's own, and how to show a place in it."""

import re
from typing import Final

_LIBRARY: Final = re.compile(
    r"[\\/](site|dist)-packages[\\/]|/lib/python\d|[\\/]Lib[\\/]|^<(?!ipython-input)|^$|^\?\?$|\.(cpp|cc|c|h|cu|cuh|so|o)$"
)


def is_library(file: str) -> bool:
    """Return whether a file belongs to a library, is no file, or is C++: everything but the user's own Python."""
    return _LIBRARY.search(file) is not None


def short_place(file: str, line: int) -> str:
    """Return a place with the last two parts of its path: "project/train.py:12"."""
    parts = file.replace("\\", "/").split("/")
    return f"{'/'.join(parts[-2:])}:{line}"
