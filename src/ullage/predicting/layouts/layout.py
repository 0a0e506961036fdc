"""Parallel layouts: the number of GPUs along each axis of parallelism."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import Final

from ullage.base.errors import UsageError, quoted

_MOST_CARDS: Final = 1 << 20
MOST_LAYOUTS: Final = 10_000
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_BOUND: Final = re.compile(r"(?P<name>[a-z][a-z0-9_]*)=(?P<most>\d{1,6})", re.ASCII)
# An axis such as expert parallelism divides the GPUs of these axes into groups.
_WITHIN: Final = ("dp", "dp_shard", "cp")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLayout:
    """A parallel layout: the size of each parallel axis, and the values of script options."""

    sizes: tuple[tuple[str, int], ...]
    choices: tuple[tuple[str, str], ...] = ()

    def size(self, axis: str) -> int:
        """Return the size of a parallel axis, or 1 if the layout does not have this axis."""
        return dict(self.sizes).get(axis, 1)

    @property
    def text(self) -> str:
        """The layout as text for reports: `dp 8 · tp 4 · pp 2, --checkpoint full`."""
        axes = " · ".join(f"{name} {size}" for name, size in self.sizes)
        return ", ".join([axes, *(f"{option} {value}" for option, value in self.choices)])


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSpace:
    """The set of parallel layouts to try."""

    axes: tuple[str, ...]
    """The parallel axes. The product of their sizes is the number of GPUs."""
    within: tuple[str, ...] = ()
    """The parallel axes, such as ep, whose groups consist of GPUs of the dp and cp axes.

    The product of the sizes of dp and cp must be a multiple of the axis's size.
    """
    cards: int
    most: Mapping[str, int]
    """Maps parallel axes to their largest allowed size, if the user gave one."""
    choices: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The script options to vary, each with the values to try."""

    @classmethod
    def parse(cls, text: str, cards: int, *, most: Sequence[str] = (), choose: Sequence[str] = ()) -> "LayoutSpace":
        """Parse axes such as `dp*tp*pp,ep`, bounds such as `tp=8`, and choices such as `--zero=1,2,3`.

        Raises:
            UsageError: a text has another form, or no layout satisfies the bounds.
        """
        if not 1 <= cards <= _MOST_CARDS:
            raise UsageError(f"cards={cards} is out of range; expected 1 to {_MOST_CARDS:,}")
        axes, _, rest = text.replace(" ", "").partition(",")
        names, within = axes.split("*"), [name for name in rest.split(",") if name]
        wrong = [name for name in (*names, *within) if _NAME.fullmatch(name) is None]
        if wrong or len({*names, *within}) < len(names) + len(within):
            raise UsageError(
                f"layout={quoted(text)} is not a product of different axes; expected dp*tp*pp*cp, or dp*tp*pp,ep for "
                "experts within dp"
            )
        space = cls(
            axes=tuple(names),
            within=tuple(within),
            cards=cards,
            most=dict(_bound(each, {*names, *within}) for each in most),
            choices=tuple(_choice(each) for each in choose),
        )
        count = sum(1 for _ in islice(space.layouts(), MOST_LAYOUTS + 1))
        if count > MOST_LAYOUTS:
            raise UsageError(
                f"layout={quoted(text)} on {cards} GPUs has more than {MOST_LAYOUTS:,} layouts; set bounds with most="
            )
        if not count:
            bounds = ", ".join(f"{name} up to {size}" for name, size in space.most.items())
            raise UsageError(f"layout={quoted(text)} allows no layout of {cards} GPUs with {bounds}")
        return space

    def layouts(self) -> Iterator[CardLayout]:
        """Yield all layouts in a fixed order."""
        for sizes in _products(self.cards, [self.most.get(name, self.cards) for name in self.axes]):
            named = tuple(zip(self.axes, sizes, strict=True))
            inside = prod(size for name, size in named if name in _WITHIN)
            divisors = _divisors(inside)
            groups = [[each for each in divisors if each <= self.most.get(name, inside)] for name in self.within]
            for more in product(*groups):
                for values in product(*(values for _, values in self.choices)):
                    yield CardLayout(
                        sizes=(*named, *zip(self.within, more, strict=True)),
                        choices=tuple(zip((option for option, _ in self.choices), values, strict=True)),
                    )


def _bound(text: str, names: set[str]) -> tuple[str, int]:
    match = _BOUND.fullmatch(text.strip())
    if match is None or match["name"] not in names or not int(match["most"]):
        raise UsageError(f"most={quoted(text)} is not a bound of an axis of layout=; expected for example tp=8")
    return match["name"], int(match["most"])


def _choice(text: str) -> tuple[str, tuple[str, ...]]:
    option, _, values = text.strip().partition("=")
    found = tuple(dict.fromkeys(value for value in values.split(",") if value))
    if not option or not found:
        raise UsageError(f"choose={quoted(text)} is not an option with values; expected for example --zero=1,2,3")
    return option, found


def _products(number: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if len(most) == 1:
        if number <= most[0]:
            yield (number,)
        return
    for first in _divisors(number):
        if first <= most[0]:
            for rest in _products(number // first, most[1:]):
                yield (first, *rest)


def _divisors(number: int) -> list[int]:
    small = [each for each in range(1, int(number**0.5) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})
