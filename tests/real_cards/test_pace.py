"""Threads that load weights keep one order, whichever of them the machine runs first."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.real_cards.drivers.pace import Order, order_of, times_of


def test_equal_weights_are_taken_as_they_come() -> None:
    """What begins when another ends begins before that is taken: two are there and two are on their way."""
    assert order_of([1] * 6, threads=2) == ([0, 0, 0, 0, 2, 2], [4, 4, 6, 6, 6, 6])


def test_a_large_first_weight_holds_up_the_taking() -> None:
    taken_before, loaded_before = order_of([9, 2, 2, 2, 2], threads=2)
    assert taken_before == [0] * 5
    assert loaded_before == [5] * 5


def test_copies_that_wait_for_one_another_hold_up_the_threads() -> None:
    taken_before, loaded_before = order_of([9, 2, 2, 2, 2], threads=2, queued=True)
    assert taken_before == [0, 0, 0, 1, 2]
    assert loaded_before == [3, 4, 5, 5, 5]


def test_copies_that_are_not_equally_fast_are_the_same_each_time() -> None:
    sizes = [1000] * 50
    assert times_of(sizes, "") == sizes
    assert times_of(sizes, "1") == times_of(sizes, "1") != times_of(sizes, "2")
    assert min(times_of(sizes, "1")) < 500 < 2000 < max(times_of(sizes, "1"))


def test_one_thread_is_one_weight_ahead() -> None:
    assert order_of([5, 1, 3], threads=1) == ([0, 0, 1], [2, 3, 3])


@pytest.mark.parametrize("sizes", [[1] * 12, [40, *[3, 1, 2] * 6], [1, 2, 3, 4, 5, 6, 50, 1, 1, 1]])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_nothing_waits_for_ever_and_the_order_is_kept(sizes: list[int], threads: int) -> None:
    """A pool of threads, as transformers has one, and a thread that takes one result after the other."""
    kept = Order(sizes, threads)
    seen: list[str] = []
    with ThreadPoolExecutor(max_workers=threads) as pool:
        futures = [pool.submit(kept.load, number, seen.append, f"load {number}") for number in range(len(sizes))]
        for number, future in enumerate(futures):
            kept.take(lambda future=future, number=number: (future.result(), seen.append(f"take {number}")))
    for number in range(len(sizes)):
        before = seen[: seen.index(f"load {number}")]
        assert sum(what.startswith("load") for what in before) == number
        assert sum(what.startswith("take") for what in before) >= kept.taken_before[number]
        before = seen[: seen.index(f"take {number}")]
        assert sum(what.startswith("load") for what in before) >= kept.loaded_before[number]
    assert len(seen) == 2 * len(sizes)


def test_a_thread_that_comes_late_loads_its_own_weight() -> None:
    """The others wait for it; they do not take its turn, which would leave the taking waiting for a later one."""
    kept = Order([1] * 12, 4)
    seen: list[int] = []
    late = threading.Event()

    def load(number: int) -> None:
        if number == 0:
            late.wait()
        kept.load(number, seen.append, number)

    with ThreadPoolExecutor(max_workers=4) as pool:
        futures = [pool.submit(load, number) for number in range(12)]
        late.set()
        for future in futures:
            kept.take(future.result)
    assert seen == list(range(12))
