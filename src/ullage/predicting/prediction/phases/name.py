"""The names of the phases of a run."""

from enum import StrEnum
from typing import Final


class PhaseName(StrEnum):
    """The name of a phase of a run. The names are in the order of the report."""

    LOADING = "loading"
    RESUMING = "resuming"
    FIRST_STEP = "first step"
    STEADY_STEP = "steady step"
    EVALUATION = "evaluation"
    GENERATE = "generate"
    SAVING = "saving"


STEPS: Final = frozenset({PhaseName.LOADING, PhaseName.FIRST_STEP, PhaseName.STEADY_STEP})
"""The phases that every training run has: loading and steps."""
