"""Edited files as a unified diff that `git apply` and `patch -p1` take."""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path

_NO_NEWLINE = "\\ No newline at end of file\n"


def diff_of(texts: Mapping[str, tuple[str, str]]) -> str:
    """Return the diff of files.

    Args:
        texts: by the path of each file, its text before and after.
    """
    return "".join(_diff(path, before, after) for path, (before, after) in texts.items() if before != after)


def _diff(path: str, before: str, after: str) -> str:
    name = _name_of(Path(path))
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines)


def _name_of(path: Path) -> str:
    """Return a path as git names it: below the top of its repository, elsewhere below the current folder."""
    path = path.absolute()
    for folder in path.parents:
        if (folder / ".git").exists():
            return path.relative_to(folder).as_posix()
    return Path(os.path.relpath(path)).as_posix()
