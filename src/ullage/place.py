"""Whose is a file that a recording, a log or a traceback of another machine names, and how its place is shown."""

import re
from typing import Final

_LIBRARY: Final = re.compile(
    r"[\\/](site|dist)-packages[\\/]|/lib/python\d|[\\/]Lib[\\/]|^<(?!ipython-input)|^$|^\?\?$|\.(cpp|cc|c|h|cu|cuh|so|o)$"
)


def is_library(file: str) -> bool:
    """Tell whether a file is a library's, is no file, or is C++: all that is not the user's own Python."""
    return _LIBRARY.search(file) is not None


def short_place(file: str, line: int) -> str:
    """Return a place with the last two parts of its path: "project/train.py:12"."""
    parts = file.replace("\\", "/").split("/")
    return f"{'/'.join(parts[-2:])}:{line}"
