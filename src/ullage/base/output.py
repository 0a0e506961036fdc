"""Output files that the user asks for, checked before anything runs; `_own_files` writes them."""

import os
from pathlib import Path
from typing import Final

from ullage.base.errors import UsageError

_LONGEST_NAME: Final = 230  # letters of a name, beside what a file that is not yet whole is called


def check_output(option: str, path: Path, *, inputs: tuple[Path, ...] = ()) -> None:
    """Raise UsageError where a file cannot be written or would replace one of `inputs`; nothing has run by then."""
    if path.name.startswith("-"):
        raise UsageError(f"{option} {path} looks like an option; expected the name of a file to write")
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise UsageError(f"{option} {path.name[:40]}... is too long a name; expected {_LONGEST_NAME} letters at most")
    for other in inputs:
        real, needed = Path(os.path.realpath(path)), Path(os.path.realpath(other))
        if real == needed or (needed.is_dir() and needed in real.parents and real.exists()):
            what = other if real == needed else f"a file of {other}"
            raise UsageError(f"{option} {path} would replace {what}, which is needed; expected another name")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"the folder of {option} {path} does not exist; make it first")
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; expected the name of a file to write")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise UsageError(f"{option} {path} is a link or a device; expected the name of a file to write")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"the folder of {option} {path} may not be written to by you; choose another")
