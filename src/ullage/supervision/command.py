"""The command that `ullage run` starts: a script or a module with this Python, or a launcher on the path."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ullage._errors import UsageError


def command_of(words: Sequence[str]) -> list[str]:
    """Return the command to execute for the words after `ullage run`.

    Args:
        words: "train.py ARGS", "-m module ARGS", or a launcher with its arguments ("torchrun", "accelerate launch").

    Raises:
        UsageError: there is no such script or launcher.
    """
    if not words:
        raise UsageError("ullage run was given nothing to run; expected a script: ullage run train.py --batch-size 8")
    first, *rest = words
    if first == "-m":
        if not rest:
            raise UsageError("-m needs the name of a module: ullage run -m package.train")
        return [sys.executable, "-m", *rest]
    if first.startswith("-"):
        raise UsageError(
            f"{first} is neither an option of ullage run nor a script; options of the script come after its name"
        )
    if first.endswith((".py", ".pyw")) and not Path(first).exists():
        raise UsageError(f"there is no script {first}; expected one in this folder, or its whole path")
    found = None if first.endswith((".py", ".pyw")) else shutil.which(first)
    if found is None and (Path(first).is_file() or (Path(first) / "__main__.py").exists()):
        return [sys.executable, first, *rest]  # python takes any file for a script, archives and compiled ones too
    if found is None:
        raise UsageError(f"{first} is neither a script nor a command on the path; expected one of them, or -m MODULE")
    return [found, *rest]
