"""A finding: what was seen, why it matters, and what to do."""

from dataclasses import dataclass
from enum import Enum


class Weight(Enum):
    """The importance of a finding."""

    PROBLEM = "problem"
    """Something does not work, is not what was asked for, or takes memory for nothing."""
    NOTE = "note"
    """Information that may well be intended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisFinding:
    """One finding about this machine."""

    name: str
    """A stable identifier for programs: it stays the same when the wording changes."""
    title: str
    seen: str
    why: str
    cure: str
    weight: Weight = Weight.PROBLEM
