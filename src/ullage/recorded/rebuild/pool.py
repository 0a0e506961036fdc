"""The private pools of a recorded run: which allocation went to which, and which pools were given up."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ullage.recorded.history import Action, History
from ullage.recorded.program import Column, is_one_of
from ullage.recorded.rebuild.life import GIVEN_BACK, REQUESTS
from ullage.recorded.rebuild.segment_life import SegmentLives


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """A private pool between two entries that allocate: all in between went to it."""

    pool: int
    first_row: int
    last_row: int


def pool_of_rows(history: History, lives: SegmentLives, oom_pool: int = 0) -> Column:
    """Return the private pool of every entry; 0: the default pool.

    Where entries do not say it, the segments do in which blocks were allocated; a request that failed is taken to be of
    `oom_pool`.
    """
    if len(history.labels.pool):
        return history.labels.pool
    pools = np.zeros(len(history), np.int64)
    of_life = np.append(lives.pools(), 0)
    if of_life.any():
        made = np.flatnonzero(history.action == Action.ALLOC)
        pools[made] = of_life[lives.at(history.address[made], made)]
        back = np.flatnonzero(is_one_of(history.action, GIVEN_BACK))
        pools[back] = of_life[lives.at(history.address[back], back - 1)]
    pools[history.action == Action.OOM] = oom_pool
    return pools


def pool_uses(history: History, pools: Column) -> list[PoolUse]:
    """Return the stretches of a history in which a private pool was allocated from, in order.

    A stretch ends where memory was given back: while allocations go to a private pool, `empty_cache` frees nothing.
    """
    made = np.flatnonzero(is_one_of(history.action, REQUESTS))
    of = pools[made]
    is_edge = np.diff(of, prepend=-1, append=-1) != 0  # no pool's number is below 0
    is_edge[np.searchsorted(made, np.flatnonzero(is_one_of(history.action, GIVEN_BACK)))] = True
    edges = np.flatnonzero(is_edge).tolist()
    return [
        PoolUse(pool=int(of[start]), first_row=int(made[start]), last_row=int(made[end - 1]))
        for start, end in pairwise(edges)
        if of[start]
    ]


def given_up(history: History, pools: Column) -> dict[int, int]:
    """Return the entry with which each pool's memory was given back, of pools that nothing was asked of after that."""
    private = np.flatnonzero(pools)
    used = private[is_one_of(history.action[private], REQUESTS)][::-1]
    numbers, latest = np.unique(pools[used], return_index=True)
    last_use = dict(zip(numbers.tolist(), used[latest].tolist(), strict=True))
    back = private[is_one_of(history.action[private], GIVEN_BACK)]
    found: dict[int, int] = {}
    for row, pool in zip(back.tolist(), pools[back].tolist(), strict=True):
        if row > last_use.get(pool, -1):
            found.setdefault(pool, row)
    return found
