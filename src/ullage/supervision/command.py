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
    if first.endswith((".py", ".pyw")) or (Path(first).is_dir() and (Path(first) / "__main__.py").exists()):
        if not Path(first).exists():
            raise UsageError(f"there is no script {first}; expected one in {Path.cwd()}, or its whole path")
        return [sys.executable, first, *rest]
    found = shutil.which(first)
    if found is None:
        raise UsageError(
            f"{first} is neither a script (a name that ends in .py) nor a command on the path; expected one of them, "
            "or -m MODULE"
        )
    return [found, *rest]
