"""Options that several subcommands have: their values, and what is said of them."""

from typing import Final

from ullage._errors import UsageError
from ullage._units import parse_bytes

WORKSPACES: Final = (
    "[bold]Workspaces[/] of convolutions are cuDNN's own, where it is beside torch or where ULLAGE_CUDNN names it, "
    "else estimated. [bold]ullage doctor --gpu T4[/] says which."
)
_STEPS: Final = 3
_MORE_STEPS: Final = 6


def size_of(text: str | None, option: str) -> int | None:
    """Read a size; an error names the option."""
    try:
        return None if text is None else parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None


def steps_of(steps: int | None) -> tuple[int, int]:
    """Return how many steps to run, and how many more until they settle; None more where a number was given."""
    return (_STEPS, _MORE_STEPS) if steps is None else (steps, 0)
