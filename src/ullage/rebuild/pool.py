"""The private pools of a recorded run: which allocation went to which, and which pools were given up."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ullage.history import Action, History
from ullage.program import Column
from ullage.rebuild.life import GIVEN_BACK, REQUESTS, TAKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolUse:
    """A private pool between two entries that allocate: all in between went to it."""

    pool: int
    first_row: int
    last_row: int


def pool_of_rows(history: History, oom_pool: int = 0) -> Column:
    """Return the private pool of every entry; 0: the default pool.

    Where entries do not say it, segments that are there at the end do, for what was allocated in them; a request that
    failed is taken to be of `oom_pool`.
    """
    if len(history.labels.pool):
        return history.labels.pool
    pools = np.zeros(len(history), np.int64)
    segments = [segment for segment in history.segments if segment.pool]
    if segments:
        begins = np.array([segment.address for segment in segments], np.int64)
        ends = np.array([segment.address + segment.size for segment in segments], np.int64)
        within = np.searchsorted(begins, history.address, side="right") - 1
        inside = (within >= 0) & (history.address < ends[within])
        taken = np.flatnonzero(inside & np.isin(history.action, TAKEN))
        created = np.zeros(len(segments), np.int64)
        np.maximum.at(created, within[taken], taken)
        rows = np.flatnonzero(inside & (history.action == Action.ALLOC))
        rows = rows[rows >= created[within[rows]]]
        pools[rows] = np.array([segment.pool for segment in segments], np.int64)[within[rows]]
    pools[history.action == Action.OOM] = oom_pool
    return pools


def pool_uses(history: History, pools: Column) -> list[PoolUse]:
    """Return the stretches of a history in which a private pool was allocated from, in order.

    A stretch ends where memory was given back: while allocations go to a private pool, `empty_cache` frees nothing.
    """
    made = np.flatnonzero(np.isin(history.action, REQUESTS))
    of = pools[made]
    is_edge = np.diff(of, prepend=-1, append=-1) != 0  # no pool's number is below 0
    is_edge[np.searchsorted(made, np.flatnonzero(np.isin(history.action, GIVEN_BACK)))] = True
    edges = np.flatnonzero(is_edge).tolist()
    return [
        PoolUse(pool=int(of[start]), first_row=int(made[start]), last_row=int(made[end - 1]))
        for start, end in pairwise(edges)
        if of[start]
    ]


def given_up_at(history: History, pools: Column, pool: int) -> int | None:
    """Return the entry with which a pool's memory was given back, if it was not allocated from after that."""
    mine = np.flatnonzero(pools == pool)
    back = mine[np.isin(history.action[mine], GIVEN_BACK)]
    used = mine[history.action[mine] == Action.ALLOC]
    after = back[back > used.max(initial=-1)]
    return int(after[0]) if len(after) else None
