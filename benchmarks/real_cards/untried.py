"""Figures that others published and that nobody has run here yet: a row each, which says what it would take."""

from benchmarks.real_cards.bench import Bench, RunError
from benchmarks.real_cards.case import Case, Result


def run(case: Case, bench: Bench) -> Result:
    """Say why it is not run."""
    raise RunError(case.parameters["why"])
