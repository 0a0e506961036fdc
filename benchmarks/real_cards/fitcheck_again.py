"""Rows of `fitcheck` once more, on the torch that `fitcheck_again.toml` names: does it change their figures?"""

from benchmarks.real_cards.fitcheck import run

__all__ = ["run"]
