"""The names of a run's phases, such as loading, steps and evaluation."""

from enum import StrEnum
from typing import Final


class PhaseName(StrEnum):
    """The name of a phase, such as evaluation. The names are in the order of the report."""

    LOADING = "loading"
    RESUMING = "resuming"
    FIRST_STEP = "first step"
    STEADY_STEP = "steady step"
    EVALUATION = "evaluation"
    GENERATE = "generate"
    SAVING = "saving"


STEPS: Final = frozenset({PhaseName.LOADING, PhaseName.FIRST_STEP, PhaseName.STEADY_STEP})
"""The phases of every training run: loading and steps."""
