"""Find the Python processes of a script or a command that do not emulate the GPU, and the cause.

Child processes find the emulated GPU through environment variables. The library of `_child/handover.c` passes these
variables on, but static programs and setuid programs do not load this library.
"""

import os
import pwd
import shlex
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ullage.base.child_process import HOOKS_FOLDER, TOKEN_VARIABLE, descendants_of, is_handed_over
from ullage.gpu.emulator.emulate import CARD_VARIABLE

# The largest fraction of time to spend on /proc.
_COST_SHARE: Final = 0.02
_WORDS_SHOWN: Final = 4
_WITH_VALUE: Final = ("-W", "-X")


@dataclass(slots=True)
class UnreachedProcesses:
    """The Python processes that do not emulate the GPU."""

    _texts: dict[int, str] = field(default_factory=dict)
    _next: float = 0.0

    def look(self, process: int) -> None:
        """Examine the descendants of a process, unless the last look is recent. Call this function often, because a
        process may end soon.
        """
        began = time.monotonic()
        if began < self._next:
            return
        for each in descendants_of(process):
            with suppress(OSError, IndexError):  # the process has ended in the meantime, or is a zombie
                if (cause := _cause(each)) and each not in self._texts:
                    self._texts[each] = f"the process {each} ({_shown(_words(each))}) did not see the GPU: {cause}"
        self._next = time.monotonic() + (time.monotonic() - began) / _COST_SHARE

    @property
    def text(self) -> str:
        """A sentence about the first unreached process, or an empty text."""
        return next(iter(self._texts.values()), "")


def _cause(process: int) -> str:
    words = _words(process)
    if not Path(words[0]).name.startswith("python"):
        return ""
    folder = Path(f"/proc/{process}")
    if (user := folder.stat().st_uid) != os.geteuid():
        return f"it runs as the user {_name_of(user)}; start the command without sudo"
    environment = dict(
        os.fsdecode(entry).partition("=")[::2] for entry in (folder / "environ").read_bytes().split(b"\0") if entry
    )
    if TOKEN_VARIABLE not in environment:
        return "the program that started it removed ullage's environment variables; expected that it keeps ULLAGE_*"
    if not environment.get(CARD_VARIABLE) or is_handed_over(environment):
        return ""
    if option := ignoring_option(words):
        return f"Python ignores PYTHONPATH or sitecustomize with {option}; start it without this option"
    if HOOKS_FOLDER not in environment.get("PYTHONPATH", "").split(os.pathsep):
        return "PYTHONPATH was replaced; add to PYTHONPATH instead: PYTHONPATH=FOLDER:$PYTHONPATH"
    return ""


def ignoring_option(words: Sequence[str]) -> str:
    """Return the option with which a command starts a Python that does not load ullage's `sitecustomize`, or ""."""
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-") or word.startswith("--"):
            return ""
        for letter in word[1:]:
            if letter in "IES":
                return f"-{letter}"
            if letter in "cm":
                return ""
        if word in _WITH_VALUE:
            next(rest, None)
    return ""


def _words(process: int) -> list[str]:
    return os.fsdecode(Path(f"/proc/{process}/cmdline").read_bytes()).split("\0")[:-1]


def _shown(words: Sequence[str]) -> str:
    more = " ..." if len(words) > _WORDS_SHOWN else ""
    return shlex.join([Path(words[0]).name, *words[1:_WORDS_SHOWN]]) + more


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
