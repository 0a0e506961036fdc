"""Determine the role of each memory block, such as parameter, gradient or activation.

The owner of a block decides its role. Without an owner, a block of a forward pass is an activation if it lives until
the backward pass, and a temporary if not. All other blocks are `unknown`.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ullage.base.block_role import Role
from ullage.gpu.tracing.journal import GRAD_ENABLED, Entries, EntryKind, Phase

# If a storage has two owners, the first role in this list wins: an embedding passed as an argument is a parameter.
_PRECEDENCE: Final = (Role.PARAMETERS, Role.BUFFERS, Role.OPTIMIZER_STATE, Role.GRADIENTS, Role.WORKSPACES, Role.INPUTS)
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Note:
    """A record of the role of the memory at an address, such as parameter or gradient."""

    index: int
    """The number of allocator events before this record."""
    address: int
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """The numbers of allocator events at which forward and backward passes began or ended, in ascending order."""

    forward_starts: list[int] = field(default_factory=list)
    backward_starts: list[int] = field(default_factory=list)
    backward_ends: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A live memory block with the index of its allocation, its address, and its rounded size."""

    index: int
    address: int
    size_bytes: int
    device: int
    phase: Phase
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """The allocation and the free of each memory block, in the order of allocation."""

    born: np.ndarray
    died: np.ndarray  # _NEVER for blocks that were not freed
    entries: Entries  # the allocation entry of each block


def lives_of(entries: Entries) -> Lives:
    """Find when each memory block was allocated and freed."""
    born = np.flatnonzero(entries["kind"] == EntryKind.ALLOC)
    died = np.full(len(born), _NEVER, np.int64)
    open_blocks: dict[tuple[int, int], int] = {}
    kinds, addresses, devices = entries["kind"].tolist(), entries["address"].tolist(), entries["device"].tolist()
    position = 0
    for index, kind in enumerate(kinds):
        if kind == EntryKind.ALLOC:
            open_blocks[devices[index], addresses[index]] = position
            position += 1
        elif kind == EntryKind.FREE:
            block = open_blocks.pop((devices[index], addresses[index]), None)
            if block is not None:
                died[block] = index
    return Lives(born=born, died=died, entries=entries[born])


def roles_of(entries: Entries, lives: Lives, notes: Iterable[Note], moments: Moments) -> list[Role]:
    """Return the role of each memory block of a run, such as parameters or activations."""
    owners = _owners(entries, lives, notes)
    forward_starts = np.asarray(moments.forward_starts, np.int64)
    backward_starts = np.asarray(moments.backward_starts, np.int64)
    backward_ends = np.asarray(moments.backward_ends, np.int64)
    next_forward = _next(forward_starts, lives.born)
    next_backward = _next(backward_starts, lives.born)
    last_forward = _previous(forward_starts, lives.born)
    last_backward_end = _previous(backward_ends, lives.born)
    phases = lives.entries["phase"].tolist()
    grads = (lives.entries["flags"] & GRAD_ENABLED).astype(bool).tolist()
    roles = []
    for block, died in enumerate(lives.died.tolist()):
        owner = owners.get(block)
        roles.append(
            owner
            or _role_by_life(
                phase=phases[block],
                grad=grads[block],
                died=died,
                next_forward=int(next_forward[block]),
                next_backward=int(next_backward[block]),
                after_forward=bool(last_forward[block] > last_backward_end[block]),
            )
        )
    return roles


def blocks_at(moment: int, lives: Lives, roles: list[Role], *, device: int) -> list[Block]:
    """Return the live memory blocks of a GPU after the allocator event `moment`."""
    alive = (lives.born <= moment) & (lives.died > moment) & (lives.entries["device"] == device)
    return [
        Block(
            index=int(lives.born[block]),
            address=int(lives.entries["address"][block]),
            size_bytes=int(lives.entries["size"][block]),
            device=device,
            phase=Phase(int(lives.entries["phase"][block])),
            role=roles[block],
        )
        for block in np.flatnonzero(alive).tolist()
    ]


def bytes_by_role(blocks: Iterable[Block], requested_bytes: Mapping[int, int]) -> dict[Role, int]:
    """Return the total size of live blocks for each role, such as parameter or gradient.

    Bytes that the allocator adds by rounding are counted as a separate role.

    Args:
        blocks: live blocks.
        requested_bytes: maps the index of a block to the size that the script requested. A block without an entry
            was not rounded.
    """
    sums = dict.fromkeys(Role, 0)
    for block in blocks:
        requested = min(requested_bytes.get(block.index, block.size_bytes), block.size_bytes)
        sums[block.role] += requested
        sums[Role.ROUNDING] += block.size_bytes - requested
    return sums


def _role_by_life(
    *, phase: int, grad: bool, died: int, next_forward: int, next_backward: int, after_forward: bool
) -> Role:
    if phase == Phase.OPTIMIZER:
        return Role.TEMPORARIES
    if phase == Phase.BACKWARD:
        # Gradients are computed with grad mode off. With grad mode on, checkpointing is recomputing activations.
        return Role.ACTIVATIONS if grad else Role.TEMPORARIES
    survives_to_backward = died > next_backward and next_backward != _NEVER
    if phase == Phase.FORWARD:
        # If the run stopped inside the forward pass, blocks allocated with gradients on are waiting for the backward
        # pass.
        waiting = grad and next_backward == _NEVER and died == _NEVER
        return Role.ACTIVATIONS if survives_to_backward or waiting else Role.TEMPORARIES
    if after_forward and next_backward <= next_forward:  # allocated between the model's call and backward(): the loss
        waiting = grad and next_backward == _NEVER and died == _NEVER
        return Role.ACTIVATIONS if survives_to_backward or waiting else Role.TEMPORARIES
    if grad and after_forward and survives_to_backward:  # passed on from one forward pass to the next
        return Role.ACTIVATIONS
    if next_forward != _NEVER and died > next_forward:
        return Role.INPUTS
    return Role.UNKNOWN if died == _NEVER else Role.TEMPORARIES


# An address can have had several blocks. A note applies to the block that was alive at that time.
def _owners(entries: Entries, lives: Lives, notes: Iterable[Note]) -> dict[int, Role]:
    rank = {role: position for position, role in enumerate(_PRECEDENCE)}
    found: dict[int, Role] = {}
    by_address: dict[int, list[int]] = {}
    for block, address in enumerate(lives.entries["address"].tolist()):
        by_address.setdefault(address, []).append(block)
    workspaces = np.flatnonzero(entries["kind"] == EntryKind.WORKSPACE).tolist()
    addresses = entries["address"]
    claims = [(index, int(addresses[index]), Role.WORKSPACES) for index in workspaces]
    claims += [(note.index, note.address, note.role) for note in notes]
    born, died = lives.born.tolist(), lives.died.tolist()
    for index, address, role in claims:
        blocks = by_address.get(address, ())
        position = (
            bisect_left(blocks, index, key=born.__getitem__) - 1
        )  # the last block allocated at this address before the claim
        if position >= 0 and index <= died[blocks[position]]:
            known = found.get(blocks[position])
            if known is None or rank[role] < rank[known]:
                found[blocks[position]] = role
    return found


def _next(sorted_indices: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.append(sorted_indices, _NEVER)[np.searchsorted(sorted_indices, at, side="right")]


def _previous(sorted_indices: np.ndarray, at: np.ndarray) -> np.ndarray:
    return np.insert(sorted_indices, 0, -1)[np.searchsorted(sorted_indices, at, side="right")]
