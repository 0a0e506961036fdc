"""The exceptions that ullage raises on purpose, and the exit codes. It knows nothing of what raises them.

UllageError                 everything below; carries the exit code of the command line
├── UsageError              the caller asked for something that cannot be; the text says what can
│   └── UnknownGpuError     no card, or more than one, answers to the name
├── TorchMissingError       no PyTorch, or one without CUDA; the text is the install line
├── EmulationError          this process cannot emulate a card (any more)
├── ScriptError             the user's script could not be run to a result
│   ├── ScriptKilledError   its process was killed from outside
│   └── ValuesError         it failed after values were read that an emulated card does not have
└── IsolationError          a function in a process of its own did not come to a result that can be handed over
"""

from enum import IntEnum
from typing import Final

from ullage.base.public import public

_MOST_SHOWN_CHARACTERS: Final = 80


class ExitCode(IntEnum):
    """What the end of a command says. `ullage.cli.exit_codes` has what it means for each command."""

    YES = 0
    NO = 1
    WRONG_USAGE = 2
    SCRIPT_FAILED = 3
    UNKNOWN = 4
    INTERRUPTED = 130
    """The code that shells give to a program that Ctrl-C has ended."""


def shortened(text: object) -> str:
    """Return what somebody gave as it goes into an error's sentence: on one line, and cut off where it is long."""
    plain = str(text)
    cut = plain if len(plain) <= _MOST_SHOWN_CHARACTERS else plain[:_MOST_SHOWN_CHARACTERS] + "..."
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in cut)


def quoted(text: object) -> str:
    """Return what somebody gave as it goes into an error's sentence: in quotes, and cut off where it is long."""
    plain = str(text)
    most = _MOST_SHOWN_CHARACTERS
    if len(repr(plain[:most])) > 2 * most:  # of characters that are written by their codes, fewer
        most //= 5
    return repr(plain if len(plain) <= most else plain[:most] + "...")


@public
class UllageError(Exception):
    """Base of every error that ullage raises on purpose."""

    exit_code: int = ExitCode.WRONG_USAGE


@public
class UsageError(UllageError):
    """Report a request that cannot be carried out as it was given."""

    exit_code: int = ExitCode.WRONG_USAGE


@public
class UnknownGpuError(UsageError):
    """Report a card name that no card, or more than one, answers to."""


@public
class TorchMissingError(UllageError):
    """Report that there is no PyTorch built for CUDA to work with."""

    exit_code: int = ExitCode.UNKNOWN


@public
class EmulationError(UllageError):
    """Report that this process cannot emulate a card, or emulates another one already."""

    exit_code: int = ExitCode.UNKNOWN


@public
class ScriptError(UllageError):
    """Report that the user's script could not be run to a result."""

    exit_code: int = ExitCode.SCRIPT_FAILED


@public
class ScriptKilledError(ScriptError):
    """Report that the process of the user's script was killed from outside, as where the host ran out of memory."""


@public
class ValuesError(ScriptError):
    """Report that the user's script failed after it had read values that an emulated card does not have."""

    exit_code: int = ExitCode.UNKNOWN


class ValuesReadError(UllageError):
    """Report that a run without values has read something that may decide; internal: it is begun anew with them."""


@public
class IsolationError(UllageError):
    """Report that a function in a process of its own did not come to a result that can be handed over."""

    exit_code: int = ExitCode.SCRIPT_FAILED
