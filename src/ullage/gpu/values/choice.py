"""The options for tensor values on an emulated GPU.

This module does not import torch.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

from ullage.base.errors import UsageError, quoted

ValuesMode = Literal["auto", "on", "off", "all"]
MODES: Final[tuple[ValuesMode, ...]] = get_args(ValuesMode)
"""The possible values of `ValuesChoice.mode`."""
ROUTINGS: Final = ("auto", "balanced", "drawn", "worst")
_MOST_SEED: Final = 1 << 40
_MOST_SKEW: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesChoice:
    """The options for tensor values on an emulated GPU."""

    mode: ValuesMode = "on"
    """The way in which ullage computes tensor values.

    "on": compute values when the script reads them. "auto": like "on", but stop after two steps in which the script
    read no value. "off": every read returns zero. "all": compute all values on the host, which is slow and exact.
    """
    seed: int = 0
    """The seed of the random values that replace unknown tensor values."""
    routing: str = "auto"
    """The experts that a mixture-of-experts router chooses if its scores are random.

    "drawn": those with the highest random scores. "balanced": all experts equally often. "worst": the same experts for
    all tokens. A number: experts by a Zipf law with this exponent. "auto": "drawn"; but if one rank of several runs
    alone, "balanced", with "worst" as one end of the reported range.
    """

    def check(self) -> None:
        """Raise UsageError if the mode or the routing is invalid."""
        if self.mode not in MODES:
            raise UsageError(f"values={quoted(self.mode)} is unknown; expected {', '.join(MODES)}")
        if not 0 <= self.seed <= _MOST_SEED:
            raise UsageError(f"values_seed={self.seed} is out of range; expected 0 to {_MOST_SEED}")
        skew_of(self.routing)


def skew_of(routing: str) -> float | None:
    """Return `routing` as the exponent of a Zipf law, or None if it is a name in `ROUTINGS`.

    Raises:
        UsageError: the routing is neither a number in range nor one of `ROUTINGS`.
    """
    if routing in ROUTINGS:
        return None
    try:
        skew = float(routing)
    except ValueError:
        skew = -1.0
    if not 0 <= skew <= _MOST_SKEW:
        raise UsageError(
            f"routing={quoted(routing)} is unknown; expected {', '.join(ROUTINGS)}, or a number from 0 (balanced) to "
            f"{_MOST_SKEW:g}: the exponent of a Zipf law over the experts"
        )
    return skew
