"""A finding: what was seen, why it matters, what to do. It knows nothing of how it was found."""

from dataclasses import dataclass
from enum import Enum


class Weight(Enum):
    """How much a finding weighs."""

    PROBLEM = "problem"
    """Something does not work, is not what was asked for, or takes memory for nothing."""
    NOTE = "note"
    """Something to know; it may well be meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know about this machine."""

    name: str
    """For programs: it stays the same when the wording changes."""
    title: str
    seen: str
    why: str
    cure: str
    weight: Weight = Weight.PROBLEM
