"""Sizes that only a real GPU can provide: CUDA contexts, and the memory of libraries outside PyTorch.

A profile is a TOML file under `profiles/` for a chip with enough published readings. Other chips follow a rule that was
derived from all readings. A GPU with an unknown chip gets an assumed size. `tools/read_contexts.py` writes the profiles
and the rule, and docs/contexts.md shows them.
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

# An assumption: cuDNN's larger workspaces are copies of a convolution's tensors in another layout or precision. Three
# copies cover everything that cuDNN's plans were observed to add to reserved memory.
WORKSPACE_TENSOR_COPIES: Final = 3
_RULE: Final = "rule"
_ASSUMED: Final = "assumed"

# NCCL
_CONNECTION_BYTES: Final = 12 * MIB
_FEWEST_CHANNELS: Final = 2
_MOST_CHANNELS: Final = 32
_PAIRS_IN_A_MACHINE: Final = 2
_PAIRS_ACROSS: Final = 5
# The largest observed memory of an NCCL communicator for work queues and kernels, without the buffers of connections.
_BESIDE_BYTES: Final = 128 * MIB
_MULTICAST_BYTES: Final = 512 * MIB
_HOPPER: Final = (9, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The size of the CUDA context on one GPU model, in bytes.

    An emulator cannot compute this size. The size is that after a few training steps. It includes all GPU memory
    outside PyTorch's allocator, except NCCL's buffers and CUDA graphs.
    """

    context_bytes: int
    context_low_bytes: int
    context_high_bytes: int
    source: str


def profile_of(gpu: Gpu) -> Profile:
    """Return the size of a GPU's CUDA context, and its range.

    The size is measured for the chip, computed by a rule, or assumed if the chip is unknown.
    """
    if "sm_count" in gpu.assumed:
        return _profile(_ASSUMED)
    chip = f"{gpu.architecture}_{gpu.sm_count}"
    return _profile(chip) if chip in _files() else _by_rule(gpu.sm_count * gpu.max_threads_per_sm)


def workspace_range(plans: Mapping[str, PlanFigures]) -> tuple[int, int]:
    """Return how many bytes less or more the reserved memory may be on a real GPU because of workspaces.

    Workspaces are used one after another and cached, so the largest single difference counts and not the sum. This is
    not a strict bound, because a workspace of a different size may use a different block of the cache.

    Args:
        plans: maps each source of workspace sizes to the plans that ran (`ullage.gpu.emulator.library.CudnnPlans`).
    """
    below = max((figures.most_below_bytes for figures in plans.values()), default=0)
    above = max((figures.most_above_bytes for figures in plans.values()), default=0)
    unknown = plans["unknown"].largest_tensor_bytes if "unknown" in plans else 0
    return below, max(above, WORKSPACE_TENSOR_COPIES * unknown)


def buffers_of(figures: CommunicatorFigures, capability: tuple[int, int], *, across: bool) -> tuple[int, int]:
    """Return the smallest and largest memory of NCCL's buffers on one GPU, in bytes.

    Two ranks that are connected on a channel use 12 MiB there, in pages of 2 MiB: buffers of the protocols LL (0.5
    MiB), LL128 (4.7) and Simple (4), and counters (NCCL 2.28, `src/transport/p2p.cc` and `src/init.cc`). The number of
    channels depends on the links between GPUs: 2 on PCIe, up to 32 over NVLink. A ring connects a rank with one pair of
    neighbors. A tree connects it with one more pair within a machine, and with up to four pairs across machines. A rank
    that sends to another rank uses the same number of channels for this connection. Multicast (NVLS, since Hopper) has
    separate buffers. docs/layouts.md lists the published measurements that these sizes were compared with.

    Args:
        figures: the communicators that executed an operation.
        capability: the GPU's compute capability.
        across: whether the ranks are on more than one machine.
    """
    most_pairs = _PAIRS_ACROSS if across else _PAIRS_IN_A_MACHINE
    most = _MOST_CHANNELS * most_pairs * _CONNECTION_BYTES + _BESIDE_BYTES
    if capability >= _HOPPER:
        most += _MULTICAST_BYTES
    by_peer = (_FEWEST_CHANNELS * _CONNECTION_BYTES, _MOST_CHANNELS * _CONNECTION_BYTES)
    # A communicator's first collective connects it; a communicator that only sends has only the connections that it
    # sends over.
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
    return {
        path.name.removesuffix(".toml"): tomllib.loads(path.read_text(encoding="utf-8"))
        for path in importlib.resources.files("ullage.gpu.emulator").joinpath("profiles").iterdir()
        if path.name.endswith(".toml")
    }
