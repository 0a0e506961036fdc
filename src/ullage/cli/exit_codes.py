"""What each command's exit codes mean: the lines of --help, and the table in docs/exit_codes.md.

python -m ullage.cli.exit_codes
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
        "advise": ("fits, or fits with the advice", "nothing tried fits", _USAGE, _FAILED, _UNKNOWN),
        "explain": ("explained", "", f"{_UNREADABLE}, or a text without an error"),
        "tune": ("other settings are better", "none is better", _UNREADABLE),
        "diff": ("compared, whatever differs", "", _UNREADABLE),
        "repro": ("written", "", f"{_UNREADABLE}, or nothing fails in it"),
        "doctor": ("no problem", "a problem", _USAGE, "", "--gpu without a PyTorch for CUDA"),
        "watch": ("ended by what it watched, by q or by Ctrl-C", "", _USAGE),
    }.items()
}
"""The meaning of each code, by command; "" for a code that it does not have. `ullage run` has the script's own."""


def exit_codes(command: str) -> str:
    """Return the line of a command's --help that lists its exit codes."""
    told = ", ".join(f"{code:d} {text}" for code, text in MEANINGS[command].items() if text)
    return f"[bold]Exit code[/] {told}."


def table() -> str:
    """Return the codes of every command as a table in Markdown."""
    codes = [code for code in ExitCode if code < ExitCode.INTERRUPTED]
    rows = [
        ["command", *(f"{code:d}" for code in codes)],
        ["---"] * (len(codes) + 1),
        *([f"`ullage {command}`", *(texts.get(code, "") for code in codes)] for command, texts in MEANINGS.items()),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table())
