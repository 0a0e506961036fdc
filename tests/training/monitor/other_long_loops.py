"""Further loops of 200,000 steps, written when the rule for levels was done, to measure it."""

from tests.training.monitor.simulated import KIB, MIB, Loop


def copies_at_checkpoints(loop: Loop) -> None:
    for number in loop.numbers():
        loop.random_batch()
        if number % 400 == 399:
            with loop.phase("save"):
                loop.keep(2 * MIB, 8)


def a_state_that_is_joined(loop: Loop) -> None:
    for _ in loop.numbers():
        loop.keep(2 * KIB, 0)
        loop.step()


def beside_a_cache(loop: Loop) -> None:
    seen = set()
    for number in loop.numbers():
        key = loop.chance.randrange(2000)
        if key not in seen:
            seen.add(key)
            loop.keep(32 * KIB)
        if number % 10 == 3:
            loop.keep(16 * KIB)
        loop.random_batch()


def begun_in_the_second_half(loop: Loop) -> None:
    for number in loop.numbers():
        if number >= 120_000 and number % 200 == 0:
            loop.keep(256 * KIB)
        loop.random_batch()


def bursts_of_which_one_stays(loop: Loop) -> None:
    for number in loop.numbers():
        if number % 300 == 0:
            loop.keep(10 * 512 * KIB, 10)
        if number % 300 == 50:
            loop.keep(-9 * 512 * KIB, -9)
        loop.step()


def beside_a_list_for_an_epoch(loop: Loop) -> None:
    for number in loop.numbers():
        loop.keep(64 * KIB)
        if number % 100 == 42:
            loop.keep(128 * KIB)
        loop.random_batch()
        if number % 1000 == 999:
            loop.keep(-1000 * 64 * KIB, -1000)


LEAKS = {
    copies_at_checkpoints: 0,
    a_state_that_is_joined: 0,
    beside_a_cache: 0,
    begun_in_the_second_half: 120_000,
    bursts_of_which_one_stays: 0,
    beside_a_list_for_an_epoch: 0,
}
"""The loops that leak, each with the step at which the leak begins."""


def three_phases_of_any_length(loop: Loop) -> None:
    for _ in loop.numbers():
        for _ in range(loop.chance.randrange(200, 3000)):
            loop.random_batch()
        for name, size in (("validate", MIB), ("sample", 3 * MIB)):
            with loop.phase(name):
                steps = loop.chance.randrange(5, 400)
                for _ in range(steps):
                    loop.keep(size // 8)
                    loop.step(size)
                loop.keep(-steps * (size // 8), -steps)


def lengths_that_drift(loop: Loop) -> None:
    for number in loop.numbers():
        loop.step(MIB + 64 * number + loop.chance.randrange(MIB))


def a_cache_that_forgets(loop: Loop) -> None:
    sizes: list[int] = []
    for _ in loop.numbers():
        if loop.chance.random() < 0.3:
            sizes.append(loop.chance.randrange(16 * KIB, 256 * KIB))
            loop.keep(sizes[-1])
            if len(sizes) > 500:
                loop.keep(-sizes.pop(0), -1)
        loop.random_batch()


def a_cache_that_fills_slowly(loop: Loop) -> None:
    for number in loop.numbers():
        if number % 40 == 0 and number < 4000:
            loop.keep(256 * KIB)
        loop.random_batch()


def heads_that_are_added(loop: Loop) -> None:
    for number in loop.numbers():
        if number in (10_000, 30_000, 70_000, 150_000):
            loop.keep(50 * MIB, 12)
        loop.random_batch()


def a_replay_buffer(loop: Loop) -> None:
    sizes: list[int] = []
    for number in loop.numbers():
        size = loop.chance.randrange(8 * KIB, 64 * KIB)
        loop.keep(size)
        if len(sizes) == 2000:
            place = loop.chance.randrange(2000)
            loop.keep(-sizes[place], -1)
            sizes[place] = size
        else:
            sizes.append(size)
        loop.random_batch()
        if number % 5000 == 4999:
            with loop.phase("eval"):
                for _ in range(30):
                    loop.step()


HEALTHY = {
    three_phases_of_any_length: 0,
    lengths_that_drift: 0,
    a_cache_that_forgets: 2_000,
    a_cache_that_fills_slowly: 4_000,
    heads_that_are_added: 0,
    a_replay_buffer: 2_000,
}
"""The loops that do not leak, each with the step by which they have ceased to grow beyond what they were at before."""
