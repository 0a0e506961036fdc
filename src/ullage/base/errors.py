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
    """The exit code of a command. `ullage.cli.exit_codes` lists what each code means for each command."""

    YES = 0
    NO = 1
    WRONG_USAGE = 2
    SCRIPT_FAILED = 3
    UNKNOWN = 4
    INTERRUPTED = 130
    """The exit code that shells report for a program that Ctrl-C terminated."""


def shortened(text: object) -> str:
    """Make one line of at most 80 characters from a text of the user, for use in an error message."""
    plain = str(text)
    cut = plain if len(plain) <= _MOST_SHOWN_CHARACTERS else plain[:_MOST_SHOWN_CHARACTERS] + "..."
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in cut)


def quoted(text: object) -> str:
    """Put a text of the user in quotes and cut it off after 80 characters, for use in an error message."""
    plain = str(text)
    most = _MOST_SHOWN_CHARACTERS
    if len(repr(plain[:most])) > 2 * most:  # fewer characters if most of them are shown as escape codes
        most //= 5
    return repr(plain if len(plain) <= most else plain[:most] + "...")


def keyword_of(option: str) -> str:
    """Return the Python keyword of an option: "total_memory" for "--total-memory". A keyword is returned unchanged."""
    return option.removeprefix("--").replace("-", "_")


@public
class UllageError(Exception):
    """The base class of every error that ullage raises on purpose."""

    exit_code: int = ExitCode.WRONG_USAGE


@public
class UsageError(UllageError):
    """The arguments of a command or a function are invalid, or their values do not fit together."""

    exit_code: int = ExitCode.WRONG_USAGE


@public
class UnknownGpuError(UsageError):
    """The name of a GPU does not match a known GPU, or matches several."""


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
    """The script read a GPU value that may decide its memory use, but this run does not compute GPU values.

    This error is internal: ullage repeats the run and computes the values.
    """


@public
class IsolationError(UllageError):
    """A function ran in a separate process, but no result could be passed back to the calling process."""

    exit_code: int = ExitCode.SCRIPT_FAILED
