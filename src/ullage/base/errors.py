"""The exceptions that ullage raises on purpose, and the exit codes.

UllageError                 base of all errors below; has the exit code of the command line
├── UsageError              the request cannot be carried out; the text says what is possible
│   └── UnknownGpuError     the name does not match a known GPU, or matches several
├── TorchMissingError       PyTorch is missing or was built without CUDA; the text has the install command
├── EmulationError          this process cannot emulate a GPU, or can no longer
├── ScriptError             the user's script failed before it gave a result
│   ├── ScriptKilledError   the script's process was killed by another process or the kernel
│   └── ValuesError         the script failed after it read values that an emulated GPU does not have
└── IsolationError          a function in a separate process did not return a result that can be passed back
"""

from enum import IntEnum
from typing import Final

from ullage.base.public import public

_MOST_SHOWN_CHARACTERS: Final = 80


class ExitCode(IntEnum):
    """The exit code of a command. See `ullage.cli.exit_codes` for the meaning of each code."""

    YES = 0
    NO = 1
    WRONG_USAGE = 2
    SCRIPT_FAILED = 3
    UNKNOWN = 4
    INTERRUPTED = 130
    """The exit code that shells report for a program that Ctrl-C terminated."""


def shortened(text: object) -> str:
    """Shorten user text to one line of at most 80 characters, for an error message."""
    plain = str(text)
    cut = plain if len(plain) <= _MOST_SHOWN_CHARACTERS else plain[:_MOST_SHOWN_CHARACTERS] + "..."
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in cut)


def quoted(text: object) -> str:
    """Quote user text and shorten it to 80 characters, for an error message."""
    plain = str(text)
    most = _MOST_SHOWN_CHARACTERS
    if len(repr(plain[:most])) > 2 * most:  # fewer characters if most of them are shown as escape codes
        most //= 5
    return repr(plain if len(plain) <= most else plain[:most] + "...")


def keyword_of(option: str) -> str:
    """Convert an option to its Python keyword, such as "--total-memory" to "total_memory"."""
    return option.removeprefix("--").replace("-", "_")


@public
class UllageError(Exception):
    """The base class of all errors that ullage raises on purpose."""

    exit_code: int = ExitCode.WRONG_USAGE


@public
class UsageError(UllageError):
    """An argument of a command or function is invalid, or does not fit the other arguments."""

    exit_code: int = ExitCode.WRONG_USAGE


@public
class UnknownGpuError(UsageError):
    """A GPU name is unknown, or matches several GPUs."""


@public
class TorchMissingError(UllageError):
    """PyTorch is not installed, or the installed PyTorch was built without CUDA."""

    exit_code: int = ExitCode.UNKNOWN


@public
class EmulationError(UllageError):
    """This process cannot emulate a GPU, or already emulates a different GPU."""

    exit_code: int = ExitCode.UNKNOWN


@public
class ScriptError(UllageError):
    """The user's script failed before it gave a result."""

    exit_code: int = ExitCode.SCRIPT_FAILED


@public
class ScriptKilledError(ScriptError):
    """The process of the user's script was killed from outside, for example because the host ran out of memory."""


@public
class ValuesError(ScriptError):
    """The user's script failed after it read values that an emulated GPU does not have."""

    exit_code: int = ExitCode.UNKNOWN


class ValuesReadError(UllageError):
    """The script read a GPU value that may change its memory use, but GPU values are not computed in this run.

    This error is internal: ullage repeats the run and computes the values.
    """


@public
class IsolationError(UllageError):
    """A function in a separate process did not return a result."""

    exit_code: int = ExitCode.SCRIPT_FAILED
