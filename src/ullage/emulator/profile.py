"""What only a real card knows: the size of a CUDA context, and what libraries take beside PyTorch's allocator.

A profile is a TOML file under `profiles/`, measured on a card or assumed; every figure has an interval, and the report
shows it as its own row. The workspaces of cuDNN are its own answer where it is installed (`ullage.emulator.cudnn`); how
far those that it did not answer may be off, `workspace_range` says.
"""

import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from ullage._units import MIB
from ullage.emulator.library import PlanFigures

# An assumption: cuDNN's larger workspaces are copies of a convolution's tensors in another layout or precision, and
# three copies cover what its own plans were seen to add to reserved memory.
WORKSPACE_TENSOR_COPIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The figures of one card that an emulator cannot compute, in bytes."""

    context_bytes: int
    context_low_bytes: int
    context_high_bytes: int
    source: str


def profile_of(card_name: str) -> Profile:
    """Return the measured profile of a card, or the assumption where there is none."""
    profiles = _profiles()
    return profiles.get(card_name, profiles[""])


def workspace_range(plans: Mapping[str, PlanFigures]) -> tuple[int, int]:
    """Estimate, in bytes, how much less and how much more real workspaces may make of reserved memory.

    Workspaces follow one another and are cached, so the largest difference of one counts, not their sum. No strict
    bound: another size may also take another place in the cache.

    Args:
        plans: those that ran, by where their workspaces come from (`ullage.emulator.library.CudnnPlans`).
    """
    below = max((figures.most_below_bytes for figures in plans.values()), default=0)
    above = max((figures.most_above_bytes for figures in plans.values()), default=0)
    unknown = plans["unknown"].largest_tensor_bytes if "unknown" in plans else 0
    return below, max(above, WORKSPACE_TENSOR_COPIES * unknown)


@cache
def _profiles() -> dict[str, Profile]:
    found = {}
    for path in importlib.resources.files("ullage.emulator").joinpath("profiles").iterdir():
        if not path.name.endswith(".toml"):
            continue
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        context = data["context"]
        profile = Profile(
            context_bytes=context["expected_mib"] * MIB,
            context_low_bytes=context["low_mib"] * MIB,
            context_high_bytes=context["high_mib"] * MIB,
            source=data["source"],
        )
        for card in data["cards"] or [""]:
            found[card] = profile
    return found
