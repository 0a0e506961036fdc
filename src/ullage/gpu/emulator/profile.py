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
from ullage.gpu.emulator.library import CommunicatorFigures, PlanFigures
from ullage.gpu.gpus import Gpu

# An assumption: cuDNN's larger workspaces are copies of a convolution's tensors in another layout or precision, and
# three copies cover what its own plans were seen to add to reserved memory.
WORKSPACE_TENSOR_COPIES: Final = 3
_RULE: Final = "rule"
_ASSUMED: Final = "assumed"

# NCCL
_CONNECTION_BYTES: Final = 12 * MIB
_FEWEST_CHANNELS: Final = 2
_MOST_CHANNELS: Final = 32
_PAIRS_IN_A_MACHINE: Final = 2
_PAIRS_ACROSS: Final = 5
_BESIDE_BYTES: Final = 128 * MIB
"""The most that was seen of a communicator beside its connections: queues of work, and its kernels."""
_MULTICAST_BYTES: Final = 512 * MIB
_HOPPER: Final = (9, 0)


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


def buffers_of(figures: CommunicatorFigures, capability: tuple[int, int], *, across: bool) -> tuple[int, int]:
    """Return the least and the most that NCCL's buffers take of one card, in bytes, outside PyTorch's allocator.

    Two ranks that are connected on a channel have 12 MiB there, in pages of 2 MiB: buffers of the protocols LL (0.5
    MiB), LL128 (4.7) and Simple (4), and counters (NCCL 2.28, `src/transport/p2p.cc` and `src/init.cc`). How many
    channels there are follows from the links between cards: 2 on PCIe, up to 32 over NVLink. A ring connects a rank
    with one pair of neighbours, a tree with as many again within a machine, and with up to four pairs across machines;
    whatever sends to a rank connects to it by as many channels. Multicast (NVLS, from Hopper on) has buffers of its
    own. docs/layouts.md has the published measurements that this was compared with.

    Args:
        figures: the communicators that worked.
        capability: the card's compute capability.
        across: whether the ranks are on more than one machine.
    """
    most_pairs = _PAIRS_ACROSS if across else _PAIRS_IN_A_MACHINE
    most = _MOST_CHANNELS * most_pairs * _CONNECTION_BYTES + _BESIDE_BYTES
    if capability >= _HOPPER:
        most += _MULTICAST_BYTES
    by_peer = (_FEWEST_CHANNELS * _CONNECTION_BYTES, _MOST_CHANNELS * _CONNECTION_BYTES)
    # A communicator's first collective connects it; one that only sends has nothing but what it sends by.
    low = max(figures.communicators, figures.peers) * by_peer[0]
    return low, figures.communicators * most + figures.peers * by_peer[1]


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
