"""In which order the threads of transformers 5 load weights, and the script's own takes and quantises them.

On a real machine the time that each copy takes decides it, differently in each run; nobody publishes it. Here one order
is kept, however busy this machine is: a load takes time in proportion to its bytes, the threads are equally fast, and
the weights are taken in turn, each as soon as it is there, which takes no time. So a large first weight, as that of
many words, holds up the taking while the other threads go on.
"""

import heapq
import random
import threading
from collections.abc import Sequence
from typing import Any


def order_of(sizes: Sequence[int], threads: int, *, queued: bool = False) -> tuple[list[int], list[int]]:
    """Return, of every weight, how many are taken before its load begins, and how many loads begin before it is taken.

    Args:
        sizes: of the weights in the order in which they are loaded and taken, in bytes.
        threads: how many load.
        queued: whether a copy begins when those before it have ended; its memory is allocated before.
    """
    free = [0] * threads
    begins, takes, latest = [], [], 0
    for size in sizes:
        begin = heapq.heappop(free)
        end = (latest if queued else begin) + size
        heapq.heappush(free, end)
        begins.append(begin)
        latest = max(latest, end)
        takes.append(latest)
    return (
        [sum(take < begin for take in takes[:number]) for number, begin in enumerate(begins)],
        [max(number + 1, sum(begin <= take for begin in begins)) for number, take in enumerate(takes)],
    )


class Order:
    """Which loads and takes are done, and who has to wait."""

    def __init__(self, sizes: Sequence[int], threads: int, *, queued: bool = False) -> None:
        self.taken_before, self.loaded_before = order_of(sizes, threads, queued=queued)
        self.loaded = self.taken = 0
        self.changed = threading.Condition()

    def load(self, number: int, function: Any, *arguments: Any, **named: Any) -> Any:
        """Load the weight with this number, when its turn has come."""
        with self.changed:
            self.changed.wait_for(lambda: self.loaded >= number and self.taken >= self.taken_before[number])
        try:
            return function(*arguments, **named)
        finally:
            with self.changed:
                self.loaded += 1
                self.changed.notify_all()

    def take(self, function: Any, *arguments: Any, **named: Any) -> Any:
        """Take one weight, when those that are to be loaded before are."""
        with self.changed:
            self.changed.wait_for(lambda: self.loaded >= self.loaded_before[self.taken])
        try:
            return function(*arguments, **named)
        finally:
            with self.changed:
                self.taken += 1
                self.changed.notify_all()


def times_of(sizes: Sequence[int], seed: str) -> list[int]:
    """Return how long each copy takes: as its bytes, or from a seed up to several times as long or as short."""
    if not seed:
        return list(sizes)
    drawn = random.Random(seed)
    return [round(size * drawn.lognormvariate(0, 1)) for size in sizes]


def keep(weights: dict[str, int], order: str) -> None:
    """Let transformers load these weights, whose sizes are in bytes, in an order: "kept", "kept:SEED" or "queued"."""
    from transformers import core_model_loading as loading

    sizes = [weights[name] for name in sorted(weights, key=loading.dot_natural_key)]
    kind, _, seed = order.partition(":")
    kept = Order(times_of(sizes, seed), loading.GLOBAL_WORKERS, queued=kind == "queued")
    load, take, spawn = loading._materialize_copy, loading.WeightRenaming.convert, loading.spawn_materialize
    numbers: dict[int, int] = {}  # as the loads are handed to the threads: which of these goes first is the machine's

    def spawned(threads: Any, weight: Any, *arguments: Any, **named: Any) -> Any:
        numbers[id(weight)] = len(numbers)
        return spawn(threads, weight, *arguments, **named)

    def loaded(weight: Any, *arguments: Any, **named: Any) -> Any:
        return kept.load(numbers[id(weight)], load, weight, *arguments, **named)

    loading.spawn_materialize, loading._materialize_copy = spawned, loaded
    loading.WeightRenaming.convert = lambda *arguments, **named: kept.take(take, *arguments, **named)
