"""Blocks that no object in Python holds: whose they are by their pool, or by their size."""

import os
import re
from collections.abc import Iterator
from typing import Final

import torch
from torch import nn

from ullage._units import KIB
from ullage.ownership.block import Block, Blocks
from ullage.ownership.claim import Claim, tensors_in_table
from ullage.ownership.holding import Kind
from ullage.ownership.inert import is_of, name_of
from ullage.ownership.parallel import has_buckets, is_bucket
from ullage.ownership.search import Search, is_tensor

LARGE_WORKSPACES: Final = {(4096 * 2 + 16 * 8) * KIB, 4096 * 8 * KIB}
_WORKSPACES: Final = LARGE_WORKSPACES | {1024 * KIB}
"""Bytes that PyTorch takes for cuBLAS on cards before Hopper and from Hopper on, and for cuBLASLt (CUDABlas.cpp and
CublasHandlePool.cpp of torch 2.11)."""
NO_PATH: Final = {
    Kind.POOL: "a private pool, of a CUDA graph or a torch.cuda.MemPool",
    Kind.WORKSPACE: "a workspace of cuBLAS, by its size",
    Kind.UNKNOWN: "nothing in Python leads to it",
}
_SEED_BYTES: Final = 512
_SEEDS: Final = 2
"""Blocks of a device's generator, the seed and the offset, from the first capture on until no CUDAGraph is left."""


def kind_of(block: Block) -> Kind:
    """Return what a block is that no object holds."""
    if block.is_private:
        return Kind.POOL
    return Kind.WORKSPACE if block.size_bytes in _WORKSPACES | _workspaces_wanted() else Kind.UNKNOWN


def claims_to_rest(search: Search, blocks: Blocks, claimed: dict[int, Claim]) -> dict[int, Claim]:
    """Return the claims to blocks that no tensor lies in: of CUDA graphs, pools, buckets, autocast."""
    parallel = [place for place in search.reach.found["module"] if has_buckets(search.reach.objects[place])]
    nameless = {row for row, claim in claimed.items() if _is_nameless(search, claim)} if parallel else set()
    rest = [row for row in range(len(blocks)) if row not in claimed or row in nameless]
    found: dict[int, Claim] = {}
    if not rest:
        return found
    pools = dict(_pools(search))
    unknown = [row for row in rest if kind_of(blocks[row]) is Kind.UNKNOWN]
    graphs = search.reach.found["cuda graph"]
    for row in rest:
        place = pools.get(blocks[row].pool)
        if place is not None:
            found[row] = Claim(Kind.POOL, place, (Kind.POOL, place), _type_text(search, place) + ", its private pool")
    seeds = [row for row in unknown if blocks[row].size_bytes == _SEED_BYTES]
    if graphs and len({blocks[row].device for row in seeds}) * _SEEDS == len(seeds):
        suffix = _type_text(search, graphs[0]) + ", its seed and offset of random numbers, by their size"
        found.update((row, Claim(Kind.POOL, graphs[0], (Kind.POOL, graphs[0], "seed"), suffix)) for row in seeds)
    sizes = dict(_sizes_cast(search)) if torch.is_autocast_enabled("cuda") else {}
    buckets: dict[int, int | None] = {}
    for row in unknown:
        size = blocks[row].size_bytes
        if size not in buckets:
            modules = (place for place in parallel if is_bucket(search.reach.objects[place], size))
            buckets[size] = next(modules, None)
        holder = buckets[size]
        if row not in found and holder is not None:
            suffix = _type_text(search, holder) + ".reducer, by its size"
            found[row] = Claim(Kind.GRADIENT, holder, (Kind.GRADIENT, holder, "bucket"), suffix)
        elif row not in found and size in sizes:
            place, suffix = sizes[size]
            found[row] = Claim(Kind.LIBRARY, place, (Kind.LIBRARY, place, "autocast"), suffix)
    return found


def _is_nameless(search: Search, claim: Claim) -> bool:
    """Tell whether of a block only its tensor is known, which C++ holds."""
    is_first = search.reach.parents[claim.place] < 0 and claim.kind is Kind.RUNNING
    return is_first and is_tensor(search.reach.objects[claim.place])


def _pools(search: Search) -> Iterator[tuple[tuple[int, int], int]]:
    """Yield private pools with the places of the objects that own them."""
    for place in search.reach.found["pool"]:
        yield tuple(torch._C._MemPool.id.__get__(search.reach.objects[place])), place
    for place in search.reach.found["cuda graph"]:
        try:
            yield tuple(torch._C._CUDAGraph.pool(search.reach.objects[place])), place
        except RuntimeError:
            continue  # nothing was captured, or it was reset


def _sizes_cast(search: Search) -> Iterator[tuple[int, tuple[int, str]]]:
    """Yield the sizes of parameters that autocast casts and keeps until its block ends, with their places."""
    width = torch.get_autocast_dtype("cuda").itemsize
    for place in reversed(search.reach.found["module"]):
        module: nn.Module = search.reach.objects[place]
        for name, tensor in tensors_in_table(module, "_parameters"):
            if tensor.dtype is torch.float32 and is_of(tensor, (nn.Parameter,)) and tensor.requires_grad:
                size = -(-tensor.numel() * width // _SEED_BYTES) * _SEED_BYTES
                text = f" -> {name_of(type(module))}.{name}, which autocast has cast and keeps, by its size"
                yield size, (place, text)


def _type_text(search: Search, place: int) -> str:
    return f" -> {name_of(type(search.reach.objects[place]))}"


def _workspaces_wanted() -> set[int]:
    """Return the sizes that the user has chosen, in KiB: for cuBLAS as ":4096:2:16:8", for cuBLASLt as a number."""
    pairs = re.findall(r":(\d{1,9}):(\d{1,9})", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    of_lt = os.environ.get("CUBLASLT_WORKSPACE_SIZE", "")
    return {
        sum(int(size) * int(count) for size, count in pairs) * KIB,
        int(of_lt) * KIB if re.fullmatch(r"\d{1,9}", of_lt) else 0,
    }
