"""Tell user code from library code by the file path, and format source locations."""

import re
from functools import lru_cache
from typing import Final

from ullage.base.visible import visible

_LIBRARY: Final = re.compile(
    r"[\\/](site|dist)-packages[\\/]|/lib/python\d|[\\/]Lib[\\/]|^<|^$|^\?\?$|\.(cpp|cc|c|h|cu|cuh|so|o|S)$"
    r"|[\\/]\w\w[\\/]c\w{40,}\.py$"  # code that torch.compile generated, in inductor's cache
)
# Code that a person typed into an interactive program: Python's own, IDLE's, IPython's, Databricks's and Spyder's.
_TYPED: Final = re.compile(
    r"^<(?:stdin|console|input|python-input-\d+|ipython-input-.*|pyshell#\d+|command-[\w-]+|doctest .*)>", re.DOTALL
)
# Databricks gives the files of notebook cells names without a suffix.
_PYTHON: Final = re.compile(
    r"\.pyw?\Z|\A<.+>|[\\/]\.ipykernel[\\/]\d+[\\/]command-[\w-]+\Z|\ACell\b", re.IGNORECASE | re.DOTALL
)
_WITHOUT_A_FILE: Final = frozenset(("<string>", "<exec>"))
_MOST_CHARACTERS: Final = 200
# A recording has many stacks of few files.
_MOST_NAMES: Final = 4096


@lru_cache(_MOST_NAMES)
def is_library(file: str) -> bool:
    """Return whether a file is library code, C++ code, generated code or not a file at all."""
    return _LIBRARY.search(file) is not None and _TYPED.match(file) is None


@lru_cache(_MOST_NAMES)
def is_python(file: str) -> bool:
    """Return whether the name of a file alone shows that it contains Python code.

    This is true for Python files, notebook cells, code that was typed, and names of code without a file such as
    `<string>`. It is false for a Python script without a suffix, whose name can be that of a program.
    """
    return _PYTHON.search(file) is not None


def is_text(file: str) -> bool:
    """Return whether a file is the name of Python code that was passed as text, such as `<string>` for `python -c`.

    Libraries execute texts too: for example, dataclasses do this for their `__init__`.
    """
    return file in _WITHOUT_A_FILE


def short_place(file: str, line: int) -> str:
    """Format a source location with the last two parts of its path, such as "project/train.py:12"."""
    parts = visible(file).replace("\\", "/").split("/")
    return f"{shortened('/'.join(parts[-2:]))}:{line}"


def shortened(name: str) -> str:
    """Shorten a long name by leaving out its middle."""
    if len(name) <= _MOST_CHARACTERS:
        return name
    half = _MOST_CHARACTERS // 2
    return f"{name[:half]}…{name[-half:]}"
