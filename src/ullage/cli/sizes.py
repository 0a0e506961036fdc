"""Sizes as options have them."""

from ullage._errors import UsageError
from ullage._units import parse_bytes


def size_of(text: str | None, option: str) -> int | None:
    """Read a size; an error names the option."""
    try:
        return None if text is None else parse_bytes(text)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
