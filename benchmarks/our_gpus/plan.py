"""The questions in the order of their value: what comes first is known first, and is known even if time runs out."""

import importlib
from types import ModuleType

from .question import Question

ORDER = (
    "context",
    "truth",
    "nf4",
    "predicted",
    "guard",
    "cudnn_workspaces",
    "allocators",
    "values",
    "explain",
    "release",
    "run_overhead",
    "durations",
)
"""The families, the most valuable first."""


def family_of(name: str) -> ModuleType:
    """Return the module that answers a question."""
    return importlib.import_module(f"benchmarks.our_gpus.families.{name.partition('/')[0]}")


def all_questions() -> list[Question]:
    """Return every question in order."""
    return [question for name in ORDER for question in family_of(name).questions()]
