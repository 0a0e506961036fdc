"""The exit codes of each command, for --help and for docs/exit_codes.md.

`python -m ullage.cli.exit_codes` prints the table.
"""

from collections.abc import Mapping
from typing import Final

from ullage.base.errors import ExitCode

_USAGE: Final = "wrong usage"
_UNREADABLE: Final = "wrong usage or unreadable file"
_FAILED: Final = "script failed"
_UNKNOWN: Final = "unknown"

MEANINGS: Final[Mapping[str, Mapping[ExitCode, str]]] = {
    command: dict(zip(ExitCode, texts, strict=False))
    for command, texts in {
        "predict": ("fits", "does not fit", _USAGE, _FAILED, _UNKNOWN),
        "fit": ("a value or a layout fits", "none fits", _USAGE, _FAILED, _UNKNOWN),
        "advise": ("fits, or fits with the advice", "no tested change fits", _USAGE, _FAILED, _UNKNOWN),
        "explain": ("explained", "", f"{_UNREADABLE}, or a text without an error"),
        "tune": ("other settings are better", "no other settings are better", _UNREADABLE),
        "diff": ("compared, whether or not they differ", "", _UNREADABLE),
        "repro": ("written", "", f"{_UNREADABLE}, or the recorded run does not fail"),
        "doctor": ("no problem", "a problem", _USAGE, "", "--gpu without a PyTorch for CUDA"),
        "watch": ("the watched processes ended, or q or Ctrl-C was pressed", "", _USAGE),
    }.items()
}
"""Maps each command to the meanings of its exit codes; "" if the command does not use a code.

`ullage run` exits with the exit code of the user's command.
"""


def exit_codes(command: str) -> str:
    """Return the text about exit codes for a command's --help."""
    told = ", ".join(f"{code:d} {text}" for code, text in MEANINGS[command].items() if text)
    return f"[bold]Exit code[/] {told}."


def table() -> str:
    """Return a Markdown table with the exit codes of all commands."""
    codes = [code for code in ExitCode if code < ExitCode.INTERRUPTED]
    rows = [
        ["command", *(f"{code:d}" for code in codes)],
        ["---"] * (len(codes) + 1),
        *([f"`ullage {command}`", *(texts.get(code, "") for code in codes)] for command, texts in MEANINGS.items()),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table())
