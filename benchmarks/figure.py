"""A measured figure and its bound, as every benchmark prints it.

Seconds have no bound that fails: on a busy machine they say as much of the machine. What fails is a ratio of two
measurements in one run, a count, or memory.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    """One figure, its unit, and the bound it must keep (None: for information)."""

    what: str
    value: float
    unit: str
    bound: float | None = None
    digits: int = 2

    @property
    def kept(self) -> bool:
        return self.unit in ("s", "ms") or self.is_within

    @property
    def is_within(self) -> bool:
        return self.bound is None or self.value <= self.bound

    def __str__(self) -> str:
        mark = "" if self.bound is None else "ok  " if self.is_within else "slow" if self.kept else "PAST"
        bound = "" if self.bound is None else f"  bound {self.bound:g} {self.unit}"
        return f"{mark:4} {self.value:9.{self.digits}f} {self.unit:3} {self.what}{bound}"
