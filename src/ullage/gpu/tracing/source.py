"""Tell the user's own code from library code."""

import csv
import os
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Final

from ullage.base.foreign_files import read_regular
from ullage.base.visible import visible

_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})
_MOST_OF_A_RECORD: Final = 1 << 24
_OWN_FOLDER: Final = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True, slots=True)
class Line:
    """A line of source code, with its file, number and function."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{_shown(self.file)}:{self.line}"


@cache
def is_users(file: str) -> bool:
    """Return whether a file is the user's own, and not from the standard library, an installed package or ullage.

    The running program counts as the user's, wherever its file is. torch never counts as the user's.
    """
    if file.startswith("<") or not file:
        return False
    if file == getattr(sys.modules.get("__main__"), "__file__", None):
        return True
    if _is_of_libraries(os.path.dirname(file)) and not os.path.islink(file):
        return False
    path = Path(file).resolve()
    if _is_installed(path):
        return False
    if any(part.startswith("torchinductor_") for part in path.parts):  # files that torch.compile wrote
        return False
    return not any(str(path).startswith(prefix) for prefix in _library_prefixes())


# Cached by folder, because a program has thousands of modules in a tenth as many folders.
@cache
def _is_of_libraries(folder: str) -> bool:
    if not os.path.isabs(folder):
        return False
    path = Path(folder).resolve()
    return not _PACKAGES.isdisjoint(path.parts) or f"{path}/".startswith(_library_prefixes())


@cache
def is_librarys(file: str) -> bool:
    """Return whether a file belongs to an installed package other than torch and ullage."""
    if file.startswith("<") or is_users(file) or not _is_installed(Path(file).resolve()):
        return False
    return not any(str(Path(file).resolve()).startswith(prefix) for prefix in _prefixes_beside_packages())


def users_line(frame: FrameType | None) -> Line | None:
    """Return the innermost line of user code on a stack, or None."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
        frame = frame.f_back
    return None


def callers_line() -> Line | None:
    """Return the user's source line that led to the calling function, or None.

    Some threads have no Python frames, such as autograd's threads.
    """
    try:
        return users_line(sys._getframe(2))
    except ValueError:
        return None


def _is_installed(path: Path) -> bool:
    if not _PACKAGES.isdisjoint(path.parts):
        return True
    for folder in {os.path.realpath(place) for place in sys.path if place}.intersection(map(str, path.parents)):
        if path.relative_to(folder).parts[0] in _installed_names(folder):
            return True
    return False


@cache
def _installed_names(folder: str) -> frozenset[str]:
    names = set[str]()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        with suppress(OSError):
            text = read_regular(record, most_bytes=_MOST_OF_A_RECORD).decode(errors="replace")
            names.update(PurePosixPath(row[0]).parts[0] for row in csv.reader(text.splitlines()) if row and row[0])
    return frozenset(names)


@cache
def _library_prefixes() -> tuple[str, ...]:
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    return _prefixes_beside_packages() + tuple(str(Path(place).resolve()) + "/" for place in places if place)


@cache
def _prefixes_beside_packages() -> tuple[str, ...]:
    places = {os.environ.get("TORCHINDUCTOR_CACHE_DIR"), _OWN_FOLDER}
    torch = sys.modules.get("torch")
    if torch is not None and torch.__file__:
        places.add(str(Path(torch.__file__).parent))
    return tuple(str(Path(place).resolve()) + "/" for place in places if place)


@cache
def _shown(file: str) -> str:
    path = Path(file)
    try:
        return visible(str(path.resolve().relative_to(Path.cwd())))
    except (ValueError, OSError):
        return visible(str(path) if len(path.parts) <= 3 else str(Path(*path.parts[-2:])))
