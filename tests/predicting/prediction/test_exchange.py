"""Messages of ranks that run alone: who is run for whom, how far, and what is answered where nothing comes."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager

import pytest

from ullage.predicting.prediction.ranks.exchange import MOST_HELPERS, NO_ROOM, TOO_MANY, Exchange, _Variant
from ullage.predicting.prediction.ranks.lone_post import LonePost
from ullage.predicting.prediction.ranks.processes import HostRoom

RUN = "run"
Act = Callable[[LonePost], None]


@contextmanager
def post(exchange: Exchange, rank: int, *, helps: bool = False) -> Iterator[LonePost]:
    """A rank that has come to the exchange."""
    found = LonePost(exchange.address, RUN, rank, helps, lambda *_, **__: None)
    found.connect()
    try:
        yield found
    finally:
        found.close()


def helpers(exchange: Exchange, started: list[int], act: dict[int, Act]) -> Callable[[int, Callable[[], bool]], None]:
    """What runs a rank as a helper: its own function with its post."""

    def start(rank: int, is_over: Callable[[], bool]) -> None:
        started.append(rank)
        with post(exchange, rank, helps=True) as own:
            act[rank](own)

    return start


@contextmanager
def two_that_are_measured() -> Iterator[tuple[LonePost, LonePost, ThreadPoolExecutor]]:
    """Two ranks at once, neither of which needs a helper, and threads for them."""
    with (
        Exchange() as exchange,
        exchange.measures(RUN, 0, helpers(exchange, [], {})),
        exchange.measures(RUN, 1, helpers(exchange, [], {})),
        post(exchange, 0) as zero,
        post(exchange, 1) as one,
        ThreadPoolExecutor(2) as pool,
    ):
        yield zero, one, pool


def test_a_chain_of_ranks_is_run_as_far_as_each_is_needed() -> None:
    started: list[int] = []
    went_on = threading.Event()

    def first(own: LonePost) -> None:
        own.send("0>1", b"a")
        went_on.set()
        own.send("0>1 again", b"never asked for")

    def second(own: LonePost) -> None:
        got = own.receive("0>1", 0)
        assert got is not None
        own.send("1>2", got + b"b")

    with (
        Exchange() as exchange,
        exchange.measures(RUN, 2, helpers(exchange, started, {0: first, 1: second})),
        post(exchange, 2) as last,
    ):
        assert last.receive("1>2", 1) == b"ab"
        assert last.receive("1>2", 1) == b"ab"
        assert started == [1, 0]
        assert not went_on.is_set(), "the first rank stops after the send that was waited for"
        assert last.receive("0>1", 0) == b"a"
        assert last.receive("0>1 again", 0) == b"never asked for"
    assert last.notes() == ["ranks 0, 1 were run too, up to the messages that this rank needs"]


def test_ranks_that_are_measured_anyway_need_no_helper() -> None:
    started: list[int] = []
    with (
        Exchange() as exchange,
        exchange.measures(RUN, 0, helpers(exchange, started, {})),
        exchange.measures(RUN, 1, helpers(exchange, started, {})),
        post(exchange, 0) as zero,
        post(exchange, 1) as one,
        ThreadPoolExecutor(1) as pool,
    ):
        waiting = pool.submit(one.receive, "0>1", 0)
        zero.send("0>1", b"")
        assert waiting.result() == b"", "a message may be empty: nobody knows what it would hold"
        assert started == []


def test_ranks_that_wait_for_each_other_go_on_without() -> None:
    with two_that_are_measured() as (zero, one, pool):
        waiting = [pool.submit(zero.receive, "1>0", 1), pool.submit(one.receive, "0>1", 0)]
        wait(waiting, return_when=FIRST_COMPLETED)
        # Whichever notices it goes on; the other waits for what that one may yet send.
        if waiting[0].done():
            zero.send("0>1", b"a")
        else:
            one.send("1>0", b"a")
        assert sorted(str(each.result()) for each in waiting) == ["None", "b'a'"]


def test_who_has_been_answered_does_not_wait_even_before_it_wakes_up() -> None:
    """Else a rank that asks it at that moment is told that both wait for each other."""
    ranks = _Variant(asks={0: (1, "step 1 of 1"), 1: (0, "step 2 of 0")})
    assert ranks.waits_for_itself(1)
    ranks.messages["step 1 of 1"] = "a"
    assert not ranks.waits_for_itself(1)
    assert not ranks.waits_for_itself(0)


def test_ranks_that_tell_each_other_in_every_round_miss_nothing() -> None:
    """Each tells, then asks the other: one that asks anew while the other has not woken up yet does not give up."""

    def rounds(own: LonePost) -> list[bytes | None]:
        found = []
        for number in range(500):
            own.send(f"{number} of {own.rank}", b"a")
            found.append(own.receive(f"{number} of {1 - own.rank}", 1 - own.rank))
        return found

    with two_that_are_measured() as (zero, one, pool):
        assert set().union(*pool.map(rounds, (zero, one))) == {b"a"}


def test_what_a_rank_told_before_it_ended_stays_and_for_more_it_is_run_again() -> None:
    started: list[int] = []

    def again(own: LonePost) -> None:
        own.send("step 1", b"a")
        own.send("step 2", b"b")

    with Exchange() as exchange:
        with exchange.measures(RUN, 0, helpers(exchange, started, {0: again})), post(exchange, 0) as zero:
            zero.send("step 1", b"a")
        with exchange.measures(RUN, 1, helpers(exchange, started, {0: again})), post(exchange, 1) as one:
            assert one.receive("step 1", 0) == b"a"
            assert started == []
            assert one.receive("step 2", 0) == b"b"
            assert started == [0]


def test_a_helper_that_ends_or_fails_is_an_answer() -> None:
    def start(rank: int, is_over: Callable[[], bool]) -> str | None:
        return "ValueError: no data" if rank == 1 else None

    with Exchange() as exchange, exchange.measures(RUN, 2, start), post(exchange, 2) as own:
        assert own.receive("0>2", 0) is None
        assert own.receive("1>2", 1) is None
    assert own.notes() == ["rank 1, from which this rank needs messages, failed: ValueError: no data"]


def test_no_more_ranks_are_run_than_the_host_has_memory_for() -> None:
    """Each has one of six that are free: as much as one more stays free."""
    free = [6]
    started: list[int] = []

    def act(own: LonePost) -> None:
        free[0] -= 1
        own.send(f"step of {own.rank}", b"a")

    room = HostRoom(lambda: free[0], lambda process: 1)
    with (
        Exchange(room) as exchange,
        exchange.measures(RUN, 0, helpers(exchange, started, dict.fromkeys(range(1, 9), act))),
        post(exchange, 0) as own,
    ):
        told = [own.receive(f"step of {rank}", rank) for rank in range(1, 9)]
        assert told == [b"a"] * 5 + [None] * 3
        assert started == [1, 2, 3, 4, 5]
        free[0] = 2
        assert own.receive("step of 6", 6) == b"a", "who was refused once is not refused for ever"
    assert exchange.refusal == NO_ROOM
    [last] = own.notes()[1:]
    assert last == f"ranks 6, 7, 8 were not run for this rank, or not from the start: {NO_ROOM}"


def test_no_more_ranks_are_run_than_is_sensible() -> None:
    started: list[int] = []
    ranks = range(1, MOST_HELPERS + 2)
    with (
        Exchange(HostRoom(lambda: None)) as exchange,
        exchange.measures(RUN, 0, helpers(exchange, started, {rank: lambda own: None for rank in ranks})),
        post(exchange, 0) as own,
    ):
        assert [own.receive("a step", rank) for rank in ranks] == [None] * len(ranks)
    assert started == [*ranks][:-1]
    assert own.notes() == [f"rank {ranks[-1]} was not run for this rank, or not from the start: {TOO_MANY}"]


def test_ranks_that_are_still_growing_count_with_what_the_largest_has() -> None:
    sizes = {1: 3, 2: 1}
    free = [0]
    room = HostRoom(lambda: free[0], sizes.__getitem__)
    assert room.has_room(0), "nobody is there whose size is known"
    for process in sizes:
        room.come(process)
    room.come(1)
    room.go(1)
    for coming, needed in ((0, 2 + 6), (2, 2 + 6 + 6)):
        free[0] = needed
        assert room.has_room(coming)
        free[0] = needed - 1
        assert not room.has_room(coming)
    room.go(1)
    free[0] = 2
    assert room.has_room(0)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_rank_that_is_killed_while_it_waits_is_no_error() -> None:
    with (
        Exchange() as exchange,
        exchange.measures(RUN, 0, helpers(exchange, [], {})),
        exchange.measures(RUN, 1, helpers(exchange, [], {})),
    ):
        with post(exchange, 0) as zero:
            with post(exchange, 1) as one:
                one._say(key="0>1", source=0)
                while not exchange._variants[RUN].asks:
                    time.sleep(0.01)
            zero.send("0>1", b"a")
        for thread in threading.enumerate():
            if "_serve" in thread.name:
                thread.join()
