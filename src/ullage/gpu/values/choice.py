"""How values on an emulated card are to be treated. It knows no torch."""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from ullage.base.errors import UsageError, quoted

ValuesMode = Literal["auto", "on", "off", "all"]
MODES: Final[tuple[ValuesMode, ...]] = get_args(ValuesMode)
"""The modes that may be asked for: see `ValuesChoice.mode`."""
ROUTINGS: Final = ("auto", "balanced", "drawn", "worst")
_MOST_SEED: Final = 1 << 40
_MOST_SKEW: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesChoice:
    """How values are treated, and what is drawn where nobody knows them."""

    mode: ValuesMode = "on"
    """"on": worked out where they are read; "auto": the same, until two steps have read nothing; "off": every read is
    zero; "all": everything is computed on the host, which is slow and right."""
    seed: int = 0
    """The seed that all drawn values follow from."""
    routing: str = "auto"
    """The experts that a router with drawn scores chooses: "drawn", "balanced", "worst", or the exponent of a Zipf law;
    "auto": "drawn", but of a rank among others "balanced", with "worst" as the end of an interval."""

    def check(self) -> None:
        """Raise UsageError where there is no such choice."""
        if self.mode not in MODES:
            raise UsageError(f"--values {quoted(self.mode)} is unknown; expected {', '.join(MODES)}")
        if not 0 <= self.seed <= _MOST_SEED:
            raise UsageError(f"--values-seed {self.seed} is out of range; expected 0 to {_MOST_SEED}")
        skew_of(self.routing)


def skew_of(routing: str) -> float | None:
    """Return the exponent that a routing names; None for one of `ROUTINGS`.

    Raises:
        UsageError: it is neither.
    """
    if routing in ROUTINGS:
        return None
    try:
        skew = float(routing)
    except ValueError:
        skew = -1.0
    if not 0 <= skew <= _MOST_SKEW:
        raise UsageError(
            f"--routing {quoted(routing)} is unknown; expected {', '.join(ROUTINGS)}, or a number from 0 (balanced) to "
            f"{_MOST_SKEW:g}: the exponent of a Zipf law over the experts"
        )
    return skew
