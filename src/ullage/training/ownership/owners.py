"""`ullage.owners`: lists which Python objects hold the memory that PyTorch has allocated.

The search begins at the user's variables. Each tensor that is found, its gradient, and the tensors that autograd has
saved are matched with memory blocks. The remaining blocks belong to a private pool or to cuBLAS, or are unknown.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from ullage.base.errors import UsageError
from ullage.base.public import public
from ullage.base.units import parse_bytes, text_of_bytes
from ullage.training.ownership.block import AllocatedBlock, AllocatedBlocks, live_blocks
from ullage.training.ownership.claim import Claim, Claims
from ullage.training.ownership.graph import described
from ullage.training.ownership.holding import HolderKind, Holding, Holdings
from ullage.training.ownership.search import OwnerSearch, owner_search
from ullage.training.ownership.unclaimed import LARGE_WORKSPACES, NO_PATH, claims_to_rest, kind_of


@public
def owners(min_bytes: int | str = "1MiB", *, device: int | None = None) -> Holdings:
    """Return the objects that hold device memory now.

    Nothing is freed or kept alive, and none of the user's code is run, such as `__repr__` or properties.

    Args:
        min_bytes: holders smaller than this are reported together in one row; a number of bytes, or a text such as
            "64KiB".
        device: the index of the device to report; by default all devices.

    Returns:
        Rows, the largest first, whose sum in bytes equals `torch.cuda.memory_allocated()`.

    Raises:
        UsageError: `min_bytes` is not a size, or the allocator cannot list its blocks (`backend:cudaMallocAsync`).
    """
    least = parse_bytes(min_bytes) if isinstance(min_bytes, str) else min_bytes
    if not isinstance(least, int) or isinstance(least, bool) or least < 0:
        raise UsageError(
            f"min_bytes={min_bytes!r} is not a size; expected a number of bytes, 0 or more, or a text such as '1MiB'"
        )
    blocks = live_blocks()
    rows = _rows_of(blocks, least) if len(blocks) else []
    rows = [row for row in rows if device is None or row.device == device]
    large = sorted((row for row in rows if row.bytes >= least), key=lambda row: -row.bytes)
    small = [row for row in rows if row.bytes < least]
    if len(small) > 1:
        text = f"{len(small)} holders smaller than {text_of_bytes(least)} each"
        total, count = sum(row.bytes for row in small), sum(row.blocks for row in small)
        small = [Holding(bytes=total, path=text, kind=HolderKind.SMALLER, blocks=count, device=small[0].device)]
    return Holdings((*large, *small))


def holder_at(addresses: Iterable[int]) -> str | None:
    """Return the path from a variable to the object that holds most of the blocks at these addresses, or None."""
    blocks = live_blocks().beginning_at(addresses)
    holdings = _rows_of(blocks) if len(blocks) else []
    known = [holding for holding in holdings if holding.kind not in NO_PATH]
    return max(known, key=lambda holding: holding.bytes).path if known else None


def _rows_of(blocks: AllocatedBlocks, least_bytes: int = 0) -> list[Holding]:
    rows = range(len(blocks))
    # The user's variables are searched first. If they lead to all blocks but small ones and workspaces, the search
    # ends.
    small = {row for row in rows if blocks[row].size_bytes < least_bytes or blocks[row].size_bytes in LARGE_WORKSPACES}
    with owner_search() as search:
        for follow in (search.follow_user, search.follow_libraries, search.follow_rest):
            follow()
            claims = Claims(search, blocks).best()
            if len(small.union(claims)) == len(blocks):
                break
        claims |= claims_to_rest(search, blocks, claims)
        groups: dict[tuple[Any, ...], list[tuple[AllocatedBlock, Claim | None]]] = defaultdict(list)
        for row in rows:
            block, claim = blocks[row], claims.get(row)
            group = claim.group if claim is not None else (kind_of(block),)
            groups[block.device, *group].append((block, claim))
        return [_holding_of(search, members) for members in groups.values()]


def _holding_of(search: OwnerSearch, members: list[tuple[AllocatedBlock, Claim | None]]) -> Holding:
    largest, claim = max(members, key=lambda member: member[0].size_bytes)
    if claim is None:
        kind = kind_of(largest)
        path = NO_PATH[kind]
    else:
        kind, is_many = claim.kind, len(members) > 1
        place, suffix = claim.common if is_many and claim.common is not None else (claim.place, claim.suffix)
        path = search.path_to(place, is_general=is_many) + suffix
        if claim.function is not None:
            saved_by = described(claim.function, search.module_names())
            path += f", the largest saved by {saved_by}" if is_many else f", saved by {saved_by}"
    return Holding(
        bytes=sum(block.size_bytes for block, _ in members),
        path=path,
        kind=kind,
        blocks=len(members),
        device=largest.device,
        allocated_at=largest.allocated_at,
    )
