"""Figures that only a real card has: the size of a CUDA context, and memory that libraries take outside PyTorch.

A profile is a TOML file under `profiles/`; every figure has an interval, and the report shows it as its own row. For a
chip of which enough readings were published there is one of its own; the others follow a rule that was made from all of
them (`tools/read_contexts.py` writes both, docs/contexts.md shows them), and a card whose chip is not known has an
assumption. The workspaces of cuDNN are its own answer where it is installed (`emulator.cudnn`); how far those
that it did not answer may be off, `workspace_range` says.
"""

import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from ullage.base.units import MIB
from ullage.gpu.emulator.library import PlanFigures
from ullage.gpu.gpus import Gpu

# An assumption: cuDNN's larger workspaces are copies of a convolution's tensors in another layout or precision, and
# three copies cover what its own plans were seen to add to reserved memory.
WORKSPACE_TENSOR_COPIES: Final = 3
_RULE: Final = "rule"
_ASSUMED: Final = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The figures of one card that an emulator cannot compute, in bytes.

    The context is that of a process that trained some steps, with everything else that it holds on the card outside
    PyTorch's allocator; NCCL's buffers and CUDA graphs are not in it.
    """

    context_bytes: int
    context_low_bytes: int
    context_high_bytes: int
    source: str


def profile_of(gpu: Gpu) -> Profile:
    """Return the profile of a card's chip; else what the rule gives, or the assumption for an unknown chip."""
    if "sm_count" in gpu.assumed:
        return _profile(_ASSUMED)
    chip = f"{gpu.architecture}_{gpu.sm_count}"
    return _profile(chip) if chip in _files() else _by_rule(gpu.sm_count * gpu.max_threads_per_sm)


def workspace_range(plans: Mapping[str, PlanFigures]) -> tuple[int, int]:
    """Estimate by how many bytes real workspaces may lower or raise the reserved memory.

    Workspaces follow one another and are cached, so the largest difference of one counts, not their sum. No strict
    bound: another size may also take another place in the cache.

    Args:
        plans: those that ran, by where their workspaces come from (`ullage.gpu.emulator.library.CudnnPlans`).
    """
    below = max((figures.most_below_bytes for figures in plans.values()), default=0)
    above = max((figures.most_above_bytes for figures in plans.values()), default=0)
    unknown = plans["unknown"].largest_tensor_bytes if "unknown" in plans else 0
    return below, max(above, WORKSPACE_TENSOR_COPIES * unknown)


def _profile(name: str) -> Profile:
    data = _files()[name]
    context = data["context"]
    return Profile(
        context_bytes=context["expected_mib"] * MIB,
        context_low_bytes=context["low_mib"] * MIB,
        context_high_bytes=context["high_mib"] * MIB,
        source=data["source"],
    )


def _by_rule(threads: int) -> Profile:
    """Apply the rule to a chip with this many resident threads; whole MiB."""
    data = _files()[_RULE]
    rule = data["rule"]
    expected = rule["base_mib"] + rule["mib_by_1024_threads"] * threads / 1024
    return Profile(
        context_bytes=round(expected) * MIB,
        context_low_bytes=round(max(expected - rule["around_mib"], 0)) * MIB,
        context_high_bytes=round(expected + rule["around_mib"]) * MIB,
        source=data["source"],
    )


@cache
def _files() -> dict[str, dict[str, Any]]:
    """Read the profiles, by the names of their files."""
    return {
        path.name.removesuffix(".toml"): tomllib.loads(path.read_text(encoding="utf-8"))
        for path in importlib.resources.files("ullage.gpu.emulator").joinpath("profiles").iterdir()
        if path.name.endswith(".toml")
    }
