"""Write a unified diff that `git apply` accepts.

`git apply` (git 2.39) reads paths from the root of the repository of the current folder, or from the current folder if
it does not belong to a repository. It refuses paths that lead through a symbolic link, and paths outside the root.
"""

import difflib
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_NO_NEWLINE: Final = "\\ No newline at end of file\n"
_ESCAPED: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def diff_of(texts: Mapping[str, tuple[str, str]], root: Path) -> str:
    """Return the unified diff of several source files.

    Args:
        texts: a mapping from the path of each file to its text before and after the edits.
        root: the folder from which the paths in the diff are read.
    """
    return "".join(_diff(path, before, after, root) for path, (before, after) in texts.items() if before != after)


def root_of_patch(files: Iterable[str]) -> Path:
    """Return the folder from which git reads the paths of a diff.

    It is the root of the repository of the current folder, or the current folder outside of repositories. If this
    folder does not contain all files, it is the root of the repository of the first file, or the common folder of all
    files.
    """
    here, paths = Path.cwd().resolve(), [Path(file).resolve() for file in files]
    root = _repository_of(here) or here
    if all(path.is_relative_to(root) for path in paths):
        return root
    return _repository_of(paths[0].parent) or Path(os.path.commonpath([path.parent for path in paths]))


def command_to_apply(patch: Path, root: Path) -> str:
    """Return the shell command that applies a diff file.

    In a subfolder of a repository, plain `git apply` skips the files outside of the subfolder.
    """
    if root == Path.cwd().resolve():
        return shlex.join(["git", "apply", str(patch)])
    return shlex.join(["git", "-C", str(root), "apply", str(patch.absolute())])


def outside_of_root(diff: str) -> str:
    """Return the path of a file that `git apply` refuses because it is outside of the root, or an empty text."""
    found = re.search(r'^--- "?a/(\.\./.*?)"?$', diff, re.MULTILINE)
    return found[1] if found else ""


def _repository_of(folder: Path) -> Path | None:
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)


def _diff(path: str, before: str, after: str, root: Path) -> str:
    name = Path(os.path.relpath(Path(path).resolve(), root)).as_posix()
    lines = difflib.unified_diff(_lines(before), _lines(after), _quoted_path(f"a/{name}"), _quoted_path(f"b/{name}"))
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}" for line in lines)


# `str.splitlines` also splits at form feeds, which older Python files contain.
def _lines(text: str) -> list[str]:
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _quoted_path(path: str) -> str:
    if path.isprintable():
        return path
    return '"' + "".join(_ESCAPED.get(letter, letter) for letter in path) + '"'
