"""Tell user code from library code by the file path, and format source locations."""

import re
from typing import Final

_LIBRARY: Final = re.compile(
    r"[\\/](site|dist)-packages[\\/]|/lib/python\d|[\\/]Lib[\\/]|^<(?!ipython-input)|^$|^\?\?$|\.(cpp|cc|c|h|cu|cuh|so|o|S)$"
    r"|[\\/]\w\w[\\/]c\w{40,}\.py$"  # code that torch.compile generated, in inductor's cache
)


_MOST_CHARACTERS: Final = 200


def is_library(file: str) -> bool:
    """Return whether a file is library code, C++ code, generated code or not a file at all."""
    return _LIBRARY.search(file) is not None


def short_place(file: str, line: int) -> str:
    """Format a source location with the last two parts of its path, such as "project/train.py:12"."""
    parts = file.replace("\\", "/").split("/")
    return f"{shortened('/'.join(parts[-2:]))}:{line}"


def shortened(name: str) -> str:
    """Shorten a long name by leaving out its middle."""
    if len(name) <= _MOST_CHARACTERS:
        return name
    half = _MOST_CHARACTERS // 2
    return f"{name[:half]}…{name[-half:]}"
