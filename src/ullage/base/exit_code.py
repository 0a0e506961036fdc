"""The exit codes of the command line."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the end of a command says. `ullage.cli.exit_codes` has what it means for each command."""

    YES = 0
    NO = 1
    WRONG_USAGE = 2
    SCRIPT_FAILED = 3
    UNKNOWN = 4
    INTERRUPTED = 130
    """The code that shells give to a program that Ctrl-C has ended."""
