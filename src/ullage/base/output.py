"""Check the user's output paths before the script runs. The module `own_files` writes the files."""

import os
from pathlib import Path
from typing import Final

from ullage.base.errors import UsageError, keyword_of

_LONGEST_NAME: Final = 230  # characters of a name; a file that is not complete yet has a longer one


def check_output(option: str, path: Path, *, inputs: tuple[Path, ...] = ()) -> None:
    """Raise UsageError if an output file cannot be written, or would replace an input file."""
    keyword = keyword_of(option)
    if path.name.startswith("-"):
        raise UsageError(f"{keyword}={path} looks like an option; expected the name of a file to write")
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise UsageError(
            f"{keyword}={path.name[:40]}... is too long; expected a name of at most {_LONGEST_NAME} characters"
        )
    for other in inputs:
        real, needed = Path(os.path.realpath(path)), Path(os.path.realpath(other))
        if real == needed or (needed.is_dir() and needed in real.parents and real.exists()):
            what = other if real == needed else f"a file of {other}"
            raise UsageError(f"{keyword}={path} would replace {what}, which is an input; expected another name")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"the folder of {keyword}={path} does not exist; create it first")
    if path.is_dir():
        raise UsageError(f"{keyword}={path} is a folder; expected the name of a file to write")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(f"{keyword}={path} is a link or a device; expected the name of a file to write")
    if not os.access(folder, os.W_OK):
        raise UsageError(
            f"{keyword}={path} is in a folder where you may not write; expected a folder with write permission"
        )
