"""Loops of 200,000 steps by which the rule for levels was made: slow leaks, and loops that grow for a while only."""

from tests.training.monitor.simulated import KIB, MIB, Loop


def a_loss_at_every_step(loop: Loop) -> None:
    for _ in loop.numbers():
        loop.keep(512)
        loop.step()


def one_in_fifty_steps(loop: Loop) -> None:
    for number in loop.numbers():
        if number % 50 == 7:
            loop.keep(64 * KIB)
        loop.random_batch()


def one_in_five_hundred_steps(loop: Loop) -> None:
    for number in loop.numbers():
        if number % 500 == 0:
            loop.keep(MIB)
        loop.step()


def by_chance_among_random_lengths(loop: Loop) -> None:
    for _ in loop.numbers():
        if loop.chance.random() < 1 / 30:
            loop.keep(256 * KIB)
        loop.random_batch()


def in_each_evaluation(loop: Loop) -> None:
    for number in loop.numbers():
        loop.random_batch()
        if number % 1000 == 999:
            with loop.phase("eval"):
                for _ in range(50):
                    loop.step()
                loop.keep(MIB)


def begun_late(loop: Loop) -> None:
    for number in loop.numbers():
        if number >= 60_000 and number % 8 == 0:
            loop.keep(64 * KIB)
        loop.random_batch()


LEAKS = {
    a_loss_at_every_step: 0,
    one_in_fifty_steps: 0,
    one_in_five_hundred_steps: 0,
    by_chance_among_random_lengths: 0,
    in_each_evaluation: 0,
    begun_late: 60_000,
}
"""The loops that leak, each with the step at which the leak begins."""


def evaluations_that_keep_predictions(loop: Loop) -> None:
    for number in loop.numbers():
        loop.random_batch()
        if number % 2000 == 1999:
            with loop.phase("eval"):
                for _ in range(200):
                    loop.keep(256 * KIB)
                    loop.step()
                loop.keep(-200 * 256 * KIB, -200)


def a_curriculum_in_stages(loop: Loop) -> None:
    for number in loop.numbers():
        most = (1 + number // 20_000) * 2 * MIB
        loop.step(loop.chance.randrange(most // 2, most))


def a_curriculum_that_unrolls(loop: Loop) -> None:
    for number in loop.numbers():
        length = 10 + min(number, 40_000) // 100
        loop.step(length * 16 * KIB, length)


def a_cache_with_random_keys(loop: Loop) -> None:
    seen = set()
    for _ in loop.numbers():
        key = loop.chance.randrange(5000)
        if key not in seen:
            seen.add(key)
            loop.keep(64 * KIB)
        loop.random_batch()


def a_buffer_that_fills(loop: Loop) -> None:
    for number in loop.numbers():
        if number < 10_000:
            loop.keep(64 * KIB)
        loop.random_batch()


def a_list_for_an_epoch(loop: Loop) -> None:
    for number in loop.numbers():
        loop.keep(16 * KIB)
        loop.random_batch()
        if number % 5000 == 4999:
            loop.keep(-5000 * 16 * KIB, -5000)


HEALTHY = {
    evaluations_that_keep_predictions: 0,
    a_curriculum_in_stages: 0,
    a_curriculum_that_unrolls: 40_000,
    a_cache_with_random_keys: 30_000,
    a_buffer_that_fills: 10_000,
    a_list_for_an_epoch: 5_000,
}
"""The loops that do not leak, each with the step by which they have ceased to grow beyond what they were at before."""
