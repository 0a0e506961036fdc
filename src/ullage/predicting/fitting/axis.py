"""The option of the user's script that `ullage fit` varies, and the values to try."""

import re
from dataclasses import dataclass
from typing import Final

from ullage.base.errors import UsageError, quoted

LARGEST: Final = 1 << 40
_TEXT: Final = re.compile(
    r"(?P<option>[^=]+)(=(?P<low>\d{1,13})(\.\.(?P<high>\d{1,13})?)?(:(?P<multiple>\d{1,13}))?)?", re.ASCII
)
_NUMBER: Final = re.compile(r"\d{1,13}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An option of the user's script and the values to try: `low`, `low + multiple`, ... up to `high`."""

    option: str
    low: int = 1
    high: int = LARGEST
    multiple: int = 1

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """Parse `--batch-size`, `--batch-size=8..`, `--batch-size=8..64` or `--batch-size=8..64:8`.

        With a multiple, every value is a multiple of it. `low` is rounded up and `high` is rounded down.

        Raises:
            UsageError: the text has another form, or the range contains no value.
        """
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"vary={quoted(text)} is not an option with a range; expected --batch-size, --batch-size=1..64 or "
                "--batch-size=8..64:8 (multiples of 8)"
            )
        low, high, multiple = (int(match[name] or 0) for name in ("low", "high", "multiple"))
        multiple = multiple or 1
        if match["low"] and not match[0].count(".."):
            raise UsageError(f"vary={quoted(text)} has one value only; expected a range such as --batch-size={low}..64")
        low = -(-max(low, 1) // multiple) * multiple
        high = (high or LARGEST) // multiple * multiple
        if low > high:
            raise UsageError(f"vary={quoted(text)} contains no value; expected the smaller number first")
        return cls(option=match["option"], low=low, high=high, multiple=multiple)

    @property
    def is_unbounded(self) -> bool:
        """Whether the user gave no highest value for the option."""
        return self.high == LARGEST // self.multiple * self.multiple

    @property
    def name(self) -> str:
        """The name of the option in reports, such as "batch size"."""
        return self.option.lstrip("-+").replace("-", " ").replace("_", " ")

    @property
    def last(self) -> int:
        """The index of the highest value in the list of values to try."""
        return (self.high - self.low) // self.multiple

    def value_at(self, position: int) -> int:
        """Return the value at an index of the list of values to try. Index 0 is the lowest value."""
        return self.low + position * self.multiple

    def position_of(self, value: float) -> int:
        """Return the index of the largest value to try that is less than or equal to `value`, or -1."""
        return max(-1, min(self.last, int((value - self.low) // self.multiple)))

    def start_in(self, arguments: tuple[str, ...]) -> tuple[int, ...]:
        """Return the values to run first: the value in the script's arguments, and its double.

        Empty if the arguments have no whole number for the option, or if the user gave a lowest value.
        """
        place = place_of(arguments, self.option)
        text = arguments[place].rpartition("=")[2] if place is not None else ""
        if self.low > self.multiple or _NUMBER.fullmatch(text) is None:
            return ()
        position = self.position_of(int(text))
        return (self.value_at(position), self.value_at(self.position_of(2 * int(text)))) if position >= 0 else ()

    def doubling(self) -> list[int]:
        """Return the lowest value, repeatedly doubled up to the highest value."""
        values = [self.low]
        while values[-1] * 2 < self.high:
            values.append(values[-1] * 2)
        return [*values, self.high] if self.high > values[-1] else values

    def put_into(self, arguments: tuple[str, ...], value: int) -> tuple[str, ...]:
        """Return the script's arguments with this option set to a value."""
        return with_option(arguments, self.option, str(value))


def with_option(arguments: tuple[str, ...], option: str, text: str) -> tuple[str, ...]:
    """Return a script's arguments with an option set to a value, in the style of the existing arguments.

    An option without dashes is set as `name=value`. An option with dashes is followed by its value, unless the
    arguments already have it as `--name=value`.
    """
    given, place = list(arguments), place_of(arguments, option)
    if place is not None:
        holds_name = given[place].startswith(f"{option}=")
        given[place] = f"{option}={text}" if holds_name else text
        return tuple(given)
    if option.startswith("-"):
        return (*given, option, text)
    return (*given, f"{option}={text}")


def place_of(arguments: tuple[str, ...], option: str) -> int | None:
    """Return the index of an option's value in the script's arguments, or None if it is missing."""
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return index
        if argument == option and index + 1 < len(arguments):
            return index + 1
    return None
