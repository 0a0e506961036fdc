"""Parses the sizes and other numbers in out-of-memory messages."""

from typing import Any, Final

from ullage.base.units import parse_bytes
from ullage.recorded.message.wording import Words

_FIELDS: Final = frozenset(
    f"{name}_bytes" for name in ("requested", "total", "free", "allocated", "host_used", "host_total")
)


def bytes_of(text: str) -> int:
    """Return the number of bytes in a text such as "8.00 GiB", "21.95G" or "25,600,000 bytes"."""
    is_less, text = text.startswith("-"), text.replace(",", "").removeprefix("-")
    number, unit = text[: -len(text.lstrip("0123456789.")) or None], text.lstrip("0123456789. ")
    unit = "B" if unit in ("", "bytes") else unit if unit.endswith(("B", "b")) else f"{unit.removesuffix('i')}iB"
    size = parse_bytes(f"{_plain(number)} {unit}")
    return -size if is_less else size


def number_of(text: str) -> float:
    """Return the number in a text such as "0.95". A final period is ignored."""
    return float(_plain(text))


# Numbers in damaged logs have more than one decimal point and endless digits.
def _plain(number: str) -> str:
    whole, _, fraction = number.partition(".")
    return f"{whole[:20]}.{fraction.replace('.', '')[:20]}"


def read_figures(window: str, words: Words, values: dict[str, Any]) -> None:
    """Parse the values that a known form of message contains, and store them in `values`.

    Args:
        window: the message and the text that follows it, on one line.
        words: the message's wording. If two patterns find the same field, the later value is used: it is the exact one.
        values: the fields so far.
    """
    said: dict[str, str] = {}
    for pattern in words.figures:
        match = pattern.search(window)
        found = match.groupdict() if match is not None else {}
        for name, text in found.items():
            if text is None:
                continue
            field = name.removesuffix("_gib") + "_bytes" if name.endswith("_gib") else name
            if name == "device":
                values["device"] = int(text)
            elif field in _FIELDS:
                size = bytes_of(text + (" GiB" if name.endswith("_gib") else ""))
                if size >= 0:  # Otherwise the text is damaged.
                    values[field] = size
            else:
                said[name] = text
    if said:
        values["said"] = said
