"""Identifies memory blocks that no Python object refers to, by their memory pool or their size."""

import os
import re
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn

from ullage.base.units import KIB
from ullage.training.ownership.block import AllocatedBlock, AllocatedBlocks
from ullage.training.ownership.claim import Claim, tensors_in_table
from ullage.training.ownership.held_in_cpp import has_buckets, is_bucket
from ullage.training.ownership.holding import HolderKind
from ullage.training.ownership.safe_inspection import is_of, name_of
from ullage.training.ownership.search import OwnerSearch, is_tensor

LARGE_WORKSPACES: Final = {(4096 * 2 + 16 * 8) * KIB, 4096 * 8 * KIB}
# PyTorch's workspace sizes in bytes: for cuBLAS on GPUs before Hopper, for cuBLAS on newer GPUs, and for cuBLASLt.
# Source: CUDABlas.cpp and CublasHandlePool.cpp of torch 2.11.
_WORKSPACES: Final = LARGE_WORKSPACES | {1024 * KIB}
NO_PATH: Final = {
    HolderKind.POOL: "a private pool of a CUDA graph or a torch.cuda.MemPool",
    HolderKind.WORKSPACE: "a cuBLAS workspace, recognised by its size",
    HolderKind.UNKNOWN: "no Python object refers to it",
}
_SEED_BYTES: Final = 512
# The number of memory blocks that a device's random generator holds for CUDA graphs: the seed and the offset. It holds
# them from the first capture until the last CUDAGraph is freed.
_GENERATOR_BLOCKS: Final = 2


def kind_of(block: AllocatedBlock) -> HolderKind:
    """Return the kind of a memory block that no Python object refers to."""
    if block.pool != (0, 0):
        return HolderKind.POOL
    return HolderKind.WORKSPACE if block.size_bytes in _WORKSPACES | _workspaces_wanted() else HolderKind.UNKNOWN


def claims_to_rest(search: OwnerSearch, blocks: AllocatedBlocks, claimed: dict[int, Claim]) -> dict[int, Claim]:
    """Return what holds memory blocks that are not the data of a Python tensor.

    Examples are blocks of CUDA graphs, memory pools, DDP's gradient buckets, and autocast's cache.
    """
    parallel = [place for place in search.reach.found["module"] if has_buckets(search.reach.objects[place])]
    is_cast = torch.is_autocast_enabled("cuda")
    nameless = {row for row, claim in claimed.items() if (parallel or is_cast) and _is_nameless(search, claim)}
    rest = [row for row in range(len(blocks)) if row not in claimed or row in nameless]
    found: dict[int, Claim] = {}
    if not rest:
        return found
    pools = dict(_pools(search))
    unknown = [row for row in rest if kind_of(blocks[row]) is HolderKind.UNKNOWN]
    graphs = search.reach.found["cuda graph"]
    for row in rest:
        place = pools.get(blocks[row].pool)
        if place is not None:
            found[row] = Claim(
                HolderKind.POOL, place, (HolderKind.POOL, place), _type_text(search, place) + ", its private pool"
            )
    seeds = [row for row in unknown if blocks[row].size_bytes == _SEED_BYTES]
    if graphs and len({blocks[row].device for row in seeds}) * _GENERATOR_BLOCKS == len(seeds):
        suffix = _type_text(search, graphs[0]) + ", its random seed and offset, recognised by their size"
        found.update(
            (row, Claim(HolderKind.POOL, graphs[0], (HolderKind.POOL, graphs[0], "seed"), suffix)) for row in seeds
        )
    sizes = dict(_sizes_cast(search)) if is_cast else {}
    buckets: dict[int, int | None] = {}
    for row in unknown:
        size = blocks[row].size_bytes
        if size not in buckets:
            modules = (place for place in parallel if is_bucket(search.reach.objects[place], size))
            buckets[size] = next(modules, None)
        holder = buckets[size]
        if row not in found and holder is not None:
            suffix = _type_text(search, holder) + ".reducer, recognised by its size"
            found[row] = Claim(HolderKind.GRADIENT, holder, (HolderKind.GRADIENT, holder, "bucket"), suffix)
        elif row not in found and size in sizes:
            place, suffix = sizes[size]
            found[row] = Claim(HolderKind.LIBRARY, place, (HolderKind.LIBRARY, place, "autocast"), suffix)
    return found


def _is_nameless(search: OwnerSearch, claim: Claim) -> bool:
    is_first = search.reach.parents[claim.place] < 0 and claim.kind is HolderKind.RUNNING
    return is_first and is_tensor(search.reach.objects[claim.place])


def _pools(search: OwnerSearch) -> Iterator[tuple[tuple[int, int], int]]:
    for place in search.reach.found["pool"]:
        pool: Any = torch._C._MemPool.id  # a descriptor of the class
        first, second = pool.__get__(search.reach.objects[place])
        yield (first, second), place
    for place in search.reach.found["cuda graph"]:
        try:
            first, second = torch._C._CUDAGraph.pool(search.reach.objects[place])
            yield (first, second), place
        except RuntimeError:
            continue  # this graph captured nothing or was reset


def _sizes_cast(search: OwnerSearch) -> Iterator[tuple[int, tuple[int, str]]]:
    width = torch.get_autocast_dtype("cuda").itemsize
    for place in reversed(search.reach.found["module"]):
        module: nn.Module = search.reach.objects[place]
        for name, tensor in tensors_in_table(module, "_parameters"):
            if tensor.dtype is torch.float32 and is_of(tensor, (nn.Parameter,)) and tensor.requires_grad:
                size = -(-tensor.numel() * width // _SEED_BYTES) * _SEED_BYTES
                text = f" -> {name_of(type(module))}.{name}, a copy that autocast caches, recognised by its size"
                yield size, (place, text)


def _type_text(search: OwnerSearch, place: int) -> str:
    return f" -> {name_of(type(search.reach.objects[place]))}"


def _workspaces_wanted() -> set[int]:
    # The user sets them in KiB: ":4096:2:16:8" for cuBLAS, a single number for cuBLASLt.
    pairs = re.findall(r":(\d{1,9}):(\d{1,9})", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    of_lt = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    return {
        sum(int(size) * int(count) for size, count in pairs) * KIB,
        int(of_lt) * KIB if re.fullmatch(r"\d{1,9}", of_lt) else 0,
    }
