"""Whether a file named by a recording, log or traceback is the user's own, and how to show a place in it."""

import re
from typing import Final

_LIBRARY: Final = re.compile(
    r"[\\/](site|dist)-packages[\\/]|/lib/python\d|[\\/]Lib[\\/]|^<(?!ipython-input)|^$|^\?\?$|\.(cpp|cc|c|h|cu|cuh|so|o|S)$"
    r"|[\\/]\w\w[\\/]c\w{40,}\.py$"  # torch.compile's own code, in inductor's cache
)


_MOST_CHARACTERS: Final = 200


def is_library(file: str) -> bool:
    """Return whether a file is of a library, no file, C++ or generated: everything but the user's own Python."""
    return _LIBRARY.search(file) is not None


def short_place(file: str, line: int) -> str:
    """Return a place with the last two parts of its path: "project/train.py:12"."""
    parts = file.replace("\\", "/").split("/")
    return f"{shortened('/'.join(parts[-2:]))}:{line}"


def shortened(name: str) -> str:
    """Return a name without its middle where it is longer than any that people read."""
    if len(name) <= _MOST_CHARACTERS:
        return name
    half = _MOST_CHARACTERS // 2
    return f"{name[:half]}…{name[-half:]}"
