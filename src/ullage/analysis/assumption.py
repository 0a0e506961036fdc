"""What a recording lacks and its replay tells: the allocator's version, and true sizes of blocks from before it began.

An entry that frees a block from before says what was asked for, not how large the block was: up to 1 MiB behind it may
not have been split off (DeviceCachingAllocator::should_split). The free block behind it is smaller by that. Where a
replay puts a request there that the recording has elsewhere, that free block was too small for the request.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np

from ullage.allocator.replay import ReplayDevice, State, replay
from ullage.analysis.fidelity import Fidelity, fidelity_of, placements_of
from ullage.analysis.recording import Recording, cut
from ullage.history import Action, History
from ullage.program import Op
from ullage.rebuild import Rebuilt, program_of
from ullage.rebuild.pool import pool_of_rows
from ullage.settings import ALLOCATORS, BLOCK_UNIT_BYTES, LARGEST_SMALL_BYTES, USUAL, SettingsError

_MOST_BLOCKS: Final = 200
"""The most blocks whose size is looked for."""
_MOST_OPERATIONS: Final = 4_000_000
"""The most entries that the replays of the search for sizes may have, all of them together."""
_MOST_POOLS: Final = 8
"""The most private pools in which a request is tried that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What a recording lacks, as the replay that is closest to the recording has it."""

    semantics: str | None = None
    """The allocator's version: one of `ullage.settings.SEMANTICS`; None where the usual one is as close as any."""
    block_bytes: Mapping[int, int] = field(default_factory=dict)
    """Sizes of blocks from before recording began, by address, where a rest was not split off."""
    oom_pool: int = 0
    """The private pool in which requests failed; 0: the default pool."""

    def program_of(
        self,
        history: History,
        *,
        semantics: str | None = None,
        alloc_conf: str | None = None,
        capacity_bytes: int | None = None,
    ) -> Rebuilt:
        """Reconstruct the program of a history with what is assumed; arguments as `ullage.rebuild.program_of`."""
        return program_of(
            history,
            semantics=semantics or self.semantics,
            alloc_conf=alloc_conf,
            capacity_bytes=capacity_bytes,
            block_bytes=self.block_bytes,
            oom_pool=self.oom_pool,
        )


def closest(history: History, *, semantics: str | None = None, alloc_conf: str | None = None) -> Assumptions:
    """Return what is assumed of a recording, because the replay is closest to the recording with it.

    Args:
        history: the recording of one device.
        semantics: the allocator's version, where it is known: one of `ullage.settings.SEMANTICS`.
        alloc_conf: the settings in force, where the snapshot does not record them.

    Raises:
        SettingsError: `alloc_conf` cannot be read.
    """
    # What a snapshot holds tells versions apart by their ties alone; the newest of each knows the most options, and of
    # several that do it exactly the newest is told.
    usual, *others = {allocator.tie: each for each, allocator in ALLOCATORS.items()}.values()
    candidates = [semantics] if semantics is not None else [usual, *reversed(others)]
    best: tuple[tuple[int, int], Assumptions] | None = None
    for version in candidates:
        try:
            distance, block_bytes, oom_pool = _distance(history, semantics=version, alloc_conf=alloc_conf)
        except SettingsError:  # an option that this version does not know
            if best is None and version == candidates[-1]:
                raise
            continue
        told = version if semantics is None and version != USUAL else None
        if best is None or distance < best[0]:
            best = distance, Assumptions(semantics=told, block_bytes=block_bytes, oom_pool=oom_pool)
        if distance == (0, 0):
            break
    assert best is not None
    return best[1]


def _distance(
    history: History, *, semantics: str, alloc_conf: str | None
) -> tuple[tuple[int, int], Mapping[int, int], int]:
    """Return how far a replay by one version is from the recording, with what else is assumed to bring it near."""
    rebuild = partial(_rebuild, history, semantics, alloc_conf)
    rebuilt = rebuild({}, 0)
    nearest, oom_pool = _order(fidelity_of(history, rebuilt)), 0
    block_bytes: Mapping[int, int] = {}
    for pool in _pools_of_a_failure(history) if nearest > (0, 0) else ():
        order = _order(fidelity_of(history, rebuild({}, pool)))
        if order < nearest:
            nearest, oom_pool = order, pool
    if nearest > (0, 0) and not rebuilt.is_whole:
        learned = _sizes_behind_holes(history, lambda sizes: rebuild(sizes, oom_pool))
        order = _order(fidelity_of(history, rebuild(learned, oom_pool)))
        if order < nearest:
            nearest, block_bytes = order, learned
    return nearest, block_bytes, oom_pool


def _pools_of_a_failure(history: History) -> list[int]:
    """Return the private pools in which a request may have failed, where its entry does not say it.

    What ran last is most likely to have asked for more: those that were used last come first.
    """
    pools = {segment.pool for segment in history.segments if segment.pool}
    failed = np.flatnonzero(history.action == Action.OOM)
    if len(history.labels.pool) or not pools or not len(failed):
        return []
    before = pool_of_rows(history)[: failed[-1]]
    used, latest = np.unique(before[::-1], return_index=True)
    waited = dict(zip(used.tolist(), latest.tolist(), strict=True))
    nearest = sorted(pools, key=lambda pool: (waited.get(pool, len(history)), pool))
    return [*nearest[:_MOST_POOLS], max(pools) + 1]  # or in one that had nothing yet


def _order(fidelity: Fidelity) -> tuple[int, int]:
    return fidelity.departures, fidelity.displaced


def _rebuild(
    history: History, semantics: str, alloc_conf: str | None, block_bytes: Mapping[int, int], oom_pool: int
) -> Rebuilt:
    rebuilt = program_of(
        history, semantics=semantics, alloc_conf=alloc_conf, block_bytes=block_bytes, oom_pool=oom_pool
    )
    return Recording.of(history, rebuilt).rebuilt


def _sizes_behind_holes(history: History, rebuild: Callable[[Mapping[int, int]], Rebuilt]) -> Mapping[int, int]:
    """Return the sizes that keep a replay from using holes which the recording did not use, one by one."""
    sizes: dict[int, int] = {}
    for _ in range(min(_MOST_BLOCKS, _MOST_OPERATIONS // (2 * len(history)))):
        found = _block_before_a_wrong_hole(history, rebuild(sizes))
        if found is None:
            break
        address, size = found
        sizes[address] = size
    return sizes


def _block_before_a_wrong_hole(history: History, rebuilt: Rebuilt) -> tuple[int, int] | None:
    """Return the address and a size of the block behind which the replay puts its first block that lies elsewhere.

    The size is the least that leaves too little room for that request; None where no such block explains it.
    """
    program, device = rebuilt.program, ReplayDevice(total_bytes=rebuilt.room_bytes)
    done = replay(program, rebuilt.settings, device, places=True)
    assert done.places is not None
    ops, is_displaced = placements_of(history, rebuilt, done)
    if not is_displaced.any():
        return None
    op = int(ops[np.argmax(is_displaced)])
    blocks = replay(cut(program, op), rebuilt.settings, device).blocks
    row = int(np.searchsorted(blocks.address, done.places.address[op]))
    if not 0 < row < len(blocks.address) or blocks.segment[row - 1] != blocks.segment[row]:
        return None
    key, size = int(blocks.key[row - 1]), int(blocks.size[row - 1])
    is_from_before = blocks.state[row - 1] == State.ALLOCATED and rebuilt.row_of_key[key] < 0
    if blocks.state[row] != State.FREE or not is_from_before or key not in program.key[program.op == Op.FREE]:
        return None
    grown = size + int(blocks.size[row]) - rebuilt.settings.rounded_bytes(int(program.size[op])) + BLOCK_UNIT_BYTES
    is_possible = size < grown <= rebuilt.settings.rounded_bytes(int(rebuilt.size_of_key[key])) + LARGEST_SMALL_BYTES
    return (int(blocks.address[row - 1]), grown) if is_possible else None
