"""Convert between byte counts and text.

All units are powers of 1024. "24GB" is read as 24 GiB, because people call a GPU with 24 GiB a 24 GB GPU. Text that
this module writes always uses KiB, MiB, GiB or TiB.
"""

import re
from fractions import Fraction
from typing import Final

from ullage.base.errors import UsageError, keyword_of, quoted

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
BOGUS_BYTES: Final = 16 * TIB
"""The largest plausible memory request in bytes.

If a program requests more memory, it has computed the size incorrectly.
"""

_BYTES_OF_UNIT: Final = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}
# The number of digits is limited, because int() rejects very long numbers with an error that does not mention sizes.
_SIZE: Final = re.compile(
    r"\s*([+-]?)([0-9]{1,20}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})\s*(?:([kmgt])i?)?b\s*", re.IGNORECASE
)


def is_size(text: str) -> bool:
    """Return whether a text is a number with a byte unit, such as "-4 GiB"."""
    return _SIZE.fullmatch(text) is not None


def parse_bytes(text: str) -> int:
    """Parse a size such as "24GiB", "1.5 TiB", "512 MB" or "64 B", and return its bytes.

    The unit is required, except for 0. KB, MB, GB and TB mean the same as KiB, MiB, GiB and TiB. A fraction of a byte
    is dropped.

    Raises:
        UsageError: the text is not a size, or is negative.
    """
    if text.strip() == "0":
        return 0
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{quoted(text)} is not a size; expected a number and a unit, such as 24GiB, 512 MiB or 1.5TiB"
        )
    sign, number, unit = match.groups(default="")
    n_bytes = int(Fraction(number) * _BYTES_OF_UNIT[unit.lower()])
    if sign == "-" and n_bytes:
        raise UsageError(f"{quoted(text.strip())} is negative; expected a size of 0 or more bytes, such as 24GiB")
    return n_bytes


def size_of(size: int | str | None, option: str) -> int | None:
    """Convert an option such as "24GiB" to bytes. Numbers are returned unchanged.

    Raises:
        UsageError: the text is not a size.
    """
    if not isinstance(size, str):
        return size
    try:
        return parse_bytes(size)
    except UsageError as error:
        raise UsageError(f"{keyword_of(option)}={error}") from None


def text_of_bytes(n_bytes: int) -> str:
    """Format a byte count for people, such as "12.3 MiB" or "23.64 GiB"."""
    magnitude = abs(n_bytes)
    if magnitude < KIB:
        return f"{n_bytes} B"
    for unit_bytes, unit, digits in ((KIB, "KiB", 1), (MIB, "MiB", 1), (GIB, "GiB", 2)):
        # The value is rounded first, so that 1023.99 MiB becomes 1.00 GiB and not 1024.0 MiB.
        if round(magnitude / unit_bytes, digits) < KIB:
            return f"{n_bytes / unit_bytes:.{digits}f} {unit}"
    return f"{n_bytes / TIB:.2f} TiB"


def text_of_seconds(seconds: float) -> str:
    """Format a duration in milliseconds, seconds or minutes."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
