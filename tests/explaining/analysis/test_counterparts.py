"""Blocks matched with those of the pass before: the fast way gives what following every block one by one gives."""

import random
from collections.abc import Iterator

import numpy as np
import pytest

from ullage.explaining.analysis.role.life import NEVER, KeyLives, Passes, counterparts
from ullage.explaining.analysis.role.maker import Pass

STACKS, SIZES = 6, (512, 1024)


def one_by_one(
    chosen: np.ndarray, lives: KeyLives, passes: Passes, part: np.ndarray, stack: np.ndarray, size: np.ndarray
) -> Iterator[tuple[int, int]]:
    place: dict[tuple[int, int, int], int] = {}
    found: dict[tuple[int, int, int, int], int] = {}
    latest: dict[tuple[int, int], int] = {}
    for key in lives.order.tolist():
        born, own, bytes_ = int(lives.born[key]), int(stack[key]), int(size[key])
        is_inside = part[key] in (Pass.BACKWARD, Pass.RECOMPUTED)
        turn = sum(end < born for end in passes.backward_ends.tolist())
        if not is_inside:
            turn = sum(start <= born for start in passes.backward_starts.tolist())
        kind = bytes_ if own >= 0 else -1
        at = place.get((turn, own, kind), 0)
        place[turn, own, kind] = at + 1
        if chosen[key]:
            before = found.get((turn - 1, own, kind, at))
            if before is None and own >= 0:
                before = latest.get((own, bytes_))
            if before is not None and size[before] == bytes_:
                yield key, before
        if lives.freed[key] != NEVER:
            found[turn, own, kind, at] = key
            latest[own, bytes_] = key


@pytest.mark.parametrize("seed", range(60))
def test_counterparts_are_those_that_are_found_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice((0, 1, 30, 200))
    stack = np.array([chance.randrange(-1, STACKS) for _ in range(count)], np.int64)
    part_of = [chance.choice(tuple(Pass)) for _ in range(STACKS)]
    part = np.array([part_of[one] if one >= 0 else Pass.BACKWARD for one in stack.tolist()], np.int64)
    size = np.array([chance.choice(SIZES) for _ in range(count)], np.int64)
    born = np.arange(count, dtype=np.int64) * 3
    freed = np.array([NEVER if chance.random() < 0.3 else at + 1 for at in born.tolist()], np.int64)
    chosen = (freed == NEVER) & np.array([chance.random() < 0.7 for _ in range(count)], bool)
    edges = sorted(chance.sample(range(3 * count + 10), 8))
    none = np.zeros(0, np.int64)
    passes = Passes(
        forward_starts=none,
        backward_starts=np.array(edges[::2]),
        backward_ends=np.array(edges[1::2]),
        after_backward=none,
        has_modules=True,
    )
    lives = KeyLives(born=born, freed=freed, order=np.arange(count, dtype=np.int64))
    stays = np.zeros(count, bool)
    found = counterparts(chosen, lives=lives, passes=passes, part=part, stack=stack, size=size, stays=stays)
    assert sorted(found) == sorted(one_by_one(chosen, lives, passes, part, stack, size))
