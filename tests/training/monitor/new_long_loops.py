"""Loops of 200,000 steps by one who had not read the rule: twelve slow leaks, and twelve that do not leak.

What is expected of each, with its reason, was written down before any was run.
"""

from collections import deque

from tests.training.monitor.simulated import KIB, MIB, Loop


def scores_of_each_evaluation(loop: Loop) -> None:
    """The first batch of each evaluation leaves 32 MiB: 63 KiB a step, 38 times in 20,000 steps."""
    for _ in loop.numbers():
        for _ in range(500):
            loop.random_batch()
        with loop.phase("eval"):
            loop.keep(32 * MIB)
            for _ in range(20):
                loop.step(8 * MIB)


def evaluations_at_irregular_times(loop: Loop) -> None:
    """Each leaves 32 MiB, and its one step is taken after the phase: 22 KiB a step, 13 times in 20,000 steps."""
    for _ in loop.numbers():
        for _ in range(loop.chance.randrange(500, 2500)):
            loop.random_batch()
        with loop.phase("eval"):
            loop.keep(32 * MIB)
        loop.step(24 * MIB)


def every_seventh_evaluation(loop: Loop) -> None:
    """The one that draws pictures leaves 32 MiB, with no phase at all: 20 KiB a step, 12 times in 20,000 steps."""
    for done, _ in enumerate(loop.numbers(), 1):
        for _ in range(200):
            loop.random_batch()
        for _ in range(30):
            loop.keep(128 * KIB)
            loop.step(6 * MIB)
        loop.keep(-30 * 128 * KIB, -30)
        if done % 7 == 0:
            loop.keep(32 * MIB)


def the_first_batch_of_each_epoch(loop: Loop) -> None:
    """Its pictures are logged, and 4 MiB of them stay: 6.4 KiB a step, 31 times in 20,000 steps."""
    for number in loop.numbers():
        place = number % 640
        if place == 0:
            loop.keep(4 * MIB, 3)
        if place == 639:
            loop.step(MIB)
        else:
            loop.random_batch()


def a_cache_of_packed_lengths(loop: Loop) -> None:
    """From step 40,000 batches are packed, and a mask is kept for two lengths that never come again: 4 KiB a step."""
    seen = set()
    for number in loop.numbers():
        if number < 40_000:
            loop.random_batch()
            continue
        first, second = loop.chance.randrange(2000), loop.chance.randrange(2000)
        if (first, second) not in seen:
            seen.add((first, second))
            loop.keep(512 * (1 + first // 128))
        loop.step((16 + first + second) * 4 * KIB)


def a_tiny_loss_of_the_critic(loop: Loop) -> None:
    """One of two phases leaks, which are entered at every step: 512 bytes a step of the critic, 427 bytes a step."""
    for _ in loop.numbers():
        for _ in range(5):
            with loop.phase("critic"):
                loop.keep(512)
                loop.random_batch()
        with loop.phase("generator"):
            loop.step(12 * MIB, 4)


def in_a_phase_within_a_phase(loop: Loop) -> None:
    """Of ten keys of the generation within an evaluation, two stay: 4.8 KiB a step, 46 times in 20,000 steps."""
    for _ in loop.numbers():
        for _ in range(400):
            loop.random_batch()
        with loop.phase("eval"):
            for _ in range(20):
                loop.step(6 * MIB)
            with loop.phase("generate"):
                for _ in range(10):
                    loop.keep(MIB)
                    loop.step(MIB)
                loop.keep(-8 * MIB, -8)


def after_each_rare_checkpoint(loop: Loop) -> None:
    """What was gathered to save it stays: 96 MiB in 3,000 steps, 33 KiB a step, 6 times in 20,000 steps."""
    for number in loop.numbers():
        loop.random_batch()
        if number % 3000 == 2999:
            loop.keep(96 * MIB, 60)


def a_buffer_that_grows_by_an_eighth(loop: Loop) -> None:
    """8 KiB a step are written to one tensor, which is replaced by a larger one when it is full, ever more rarely.

    49 times in the first 20,000 steps.
    """
    capacity = 64
    for number in loop.numbers():
        if number >= capacity:
            more = capacity // 8
            capacity += more
            loop.keep(more * 8 * KIB, 0)
        loop.random_batch()


def beneath_shards_that_are_used_up(loop: Loop) -> None:
    """A shard of items is loaded at once, and each is freed when it was used; of each 8 KiB stay: 8 KiB a step."""
    for _ in loop.numbers():
        items = loop.chance.randrange(500, 1500)
        loop.keep(items * 64 * KIB, items)
        for _ in range(items):
            loop.keep(-64 * KIB, -1)
            loop.keep(8 * KIB)
            loop.random_batch()


def slower_than_its_noise(loop: Loop) -> None:
    """From step 90,000, 256 KiB in 4 steps, among batches of up to 512 MiB and 1,000 blocks: 64 KiB a step."""
    for number in loop.numbers():
        if number >= 90_000 and number % 4 == 0:
            loop.keep(256 * KIB)
        loop.step(loop.chance.randrange(MIB, 512 * MIB), loop.chance.randrange(50, 1000))


def with_a_pause(loop: Loop) -> None:
    """64 KiB in 2 steps, 32 KiB a step, but for the steps 40,000 to 70,000."""
    for number in loop.numbers():
        if not 40_000 <= number < 70_000 and number % 2 == 0:
            loop.keep(64 * KIB)
        loop.random_batch()


LEAKS = {
    scores_of_each_evaluation: 0,
    evaluations_at_irregular_times: 0,
    every_seventh_evaluation: 0,
    the_first_batch_of_each_epoch: 0,
    a_cache_of_packed_lengths: 40_000,
    a_tiny_loss_of_the_critic: 0,
    in_a_phase_within_a_phase: 0,
    after_each_rare_checkpoint: 0,
    a_buffer_that_grows_by_an_eighth: 0,
    beneath_shards_that_are_used_up: 0,
    slower_than_its_noise: 90_000,
    with_a_pause: 0,
}
"""The loops that leak, each with the step at which the leak begins."""

RESUMED = {with_a_pause: 70_000}
"""The loops whose leak pauses, each with the step at which it goes on."""


def a_batch_size_that_is_ramped_up(loop: Loop) -> None:
    """Every 1,000 steps by 8 items, until 60,000.

    As many blocks as ever, and the peak grows five times as much as what is there after a step: the batch is larger.
    """
    for number in loop.numbers():
        items = 32 + 8 * min(number // 1000, 60)
        loop.step(items * 64 * KIB, 6)


def lengths_up_to_a_rising_most(loop: Loop) -> None:
    """Until 120,000, with evaluations of full length. Short batches leave as little as ever, and blocks are as many."""
    for number in loop.numbers():
        most = 128 + 1920 * min(number, 120_000) // 120_000
        loop.step(loop.chance.randrange(64, most) * 8 * KIB)
        if number % 3000 == 2999:
            with loop.phase("eval"):
                for _ in range(40):
                    loop.step(2048 * 8 * KIB, 2, 1)


def a_cache_of_shapes_of_which_few_are_common(loop: Loop) -> None:
    """200 shapes are compiled for, the last of them past 60 % of the run.

    The growth is as the root of the steps: it shrinks from the beginning, on every scale (57 shapes in 1,000 steps,
    170 in 20,000).
    """
    seen = set()
    for _ in loop.numbers():
        shape = min(int(1 / (1 - loop.chance.random())), 200)
        if shape not in seen:
            seen.add(shape)
            loop.keep(2 * MIB, 3)
        loop.step((1 + shape % 16) * MIB)


def a_replay_buffer_in_four_parts(loop: Loop) -> None:
    """Taken when the one before is full, the last at 7,500; then it wraps. Four stages, flat in between and after."""
    for number in loop.numbers():
        if number % 2500 == 0 and number < 10_000:
            loop.keep(256 * MIB, 4)
        for _ in range(4):
            loop.step(64 * KIB, 1, 1)
        loop.step(8 * MIB)


def layers_that_thaw(loop: Loop) -> None:
    """Every 10,000 steps the gradients and moments of a further group of layers, of another size each, until 60,000.

    Six stages of unequal height, flat for 10,000 steps in between.
    """
    groups = {10_000: 8, 20_000: 28, 30_000: 28, 40_000: 21, 50_000: 14, 60_000: 56}
    thawed = 0
    for number in loop.numbers():
        if number in groups:
            thawed += 1
            loop.keep(3 * groups[number] * MIB, 36)
        loop.step(loop.chance.randrange(64 * KIB, 16 * MIB), 2, 2 + thawed)


def evaluations_by_a_larger_model(loop: Loop) -> None:
    """It is loaded for each, and texts are generated with a cache of keys; all of it is freed, each time."""
    for _ in loop.numbers():
        for _ in range(loop.chance.randrange(800, 3000)):
            loop.random_batch()
        with loop.phase("eval"):
            loop.keep(300 * MIB, 200)
            for _ in range(30):
                loop.step(20 * MIB, 2, 1)
            with loop.phase("generate"):
                for _ in range(8):
                    tokens = loop.chance.randrange(10, 60)
                    for _ in range(tokens):
                        loop.keep(512 * KIB)
                        loop.step(MIB, 2, 1)
                    loop.keep(-tokens * 512 * KIB, -tokens)
            loop.keep(-300 * MIB, -200)


def a_memory_bank_in_sorted_epochs(loop: Loop) -> None:
    """The features of the last 100 batches, which are sorted by length in each epoch of 5,000 steps.

    As many blocks as ever, the peak grows with the batch and more than what stays, and all is back when an epoch ends.
    """
    bank = deque([16 * KIB] * 100)
    loop.keep(100 * 16 * KIB, 100)
    for number in loop.numbers():
        size = MIB + number % 5000 * 3 * KIB + loop.chance.randrange(256 * KIB)
        bank.append(size // 64)
        loop.keep(size // 64 - bank.popleft(), 0)
        loop.step(size)


def averages_made_late_and_a_profiler(loop: Loop) -> None:
    """Averages of the weights from 21,000 and 151,000 on, and windows of 60 steps whose events are freed at the end.

    Two stages; a window grows for 60 steps, and leaves nothing.
    """
    for number in loop.numbers():
        if number in (21_000, 151_000):
            loop.keep(80 * MIB, 60)
        loop.random_batch()
        if number % 5000 == 4999:
            for _ in range(60):
                loop.keep(MIB, 20)
                loop.random_batch()
            loop.keep(-60 * MIB, -60 * 20)


def buffers_for_the_longest_so_far(loop: Loop) -> None:
    """Five buffers are replaced by larger ones for a length that is a record, up to 4,096.

    A record is ever rarer (about 12 in the run), and blocks are as many as ever.
    """
    longest = 0
    for _ in loop.numbers():
        length = max(1, min(int(loop.chance.lognormvariate(5.5, 0.65)), 4096))
        if length > longest:
            loop.keep((length - longest) * 5 * 8 * KIB, 0 if longest else 5)
            longest = length
        loop.step(length * 4 * KIB)


def two_networks_that_grow_by_design(loop: Loop) -> None:
    """Every 25,000 steps until 100,000, at a higher resolution; critic and generator take turns in phases.

    Four stages, flat in between; the penalty of every 16th critic's step is freed at the next step.
    """
    made = 0
    for number in loop.numbers():
        stage = min(number // 25_000, 4)
        if stage > made:
            made = stage
            loop.keep(24 * stage * MIB, 32)
        size = (2, 4, 8, 12, 16)[stage] * MIB
        with loop.phase("critic"):
            loop.step(size * (3 if number % 32 == 0 else 1), 4)
        with loop.phase("generator"):
            loop.step(size, 6)


def warm_restarts_with_snapshots(loop: Loop) -> None:
    """Cycles of 2,000 steps, 4,000 and so on: the optimizer's state starts anew, and the last 3 models are kept.

    Three stages, each as long as all before; afterwards a new snapshot takes the place of an old one.
    """
    length, end, snapshots = 2000, 2000, 0
    loop.keep(160 * MIB, 120)
    for number in loop.numbers():
        loop.random_batch()
        if number + 1 == end:
            length *= 2
            end += length
            loop.keep(-160 * MIB, -120)
            if snapshots < 3:
                snapshots += 1
                loop.keep(80 * MIB, 60)
            loop.step(MIB)
            loop.keep(160 * MIB, 120)


def several_steps_a_batch(loop: Loop) -> None:
    """`step` after each of 4 forwards and backwards and after the optimizer, whose gradients are then freed.

    Epochs of 1,000 batches, with a smaller last one. After each optimizer's step memory is what it was.
    """
    for _ in loop.numbers():
        for place in range(1000):
            for micro in range(4):
                size = (32 if place < 999 else 5) * loop.chance.randrange(4, 64) * KIB
                loop.keep(512)
                loop.step(6 * size, 150)
                if micro == 0:
                    loop.keep(80 * MIB, 60)
                loop.step(size)
            loop.keep(-80 * MIB - 4 * 512, -64)
            loop.step(0, 0)


HEALTHY = {
    a_batch_size_that_is_ramped_up: 0,
    lengths_up_to_a_rising_most: 0,
    a_cache_of_shapes_of_which_few_are_common: 2_000,
    a_replay_buffer_in_four_parts: 0,
    layers_that_thaw: 0,
    evaluations_by_a_larger_model: 0,
    a_memory_bank_in_sorted_epochs: 5_000,
    averages_made_late_and_a_profiler: 5_060,
    buffers_for_the_longest_so_far: 0,
    two_networks_that_grow_by_design: 0,
    warm_restarts_with_snapshots: 0,
    several_steps_a_batch: 0,
}
"""The loops that do not leak, each with the step after which nothing may be reported as a leak.

Until then, three of them keep more at each step and cannot be told from a leak: the first window of a profiler, a cache
of shapes that begins to fill, and features of the first epoch, whose batches are sorted by length. The steps of the
last two were set after the first run; the loops were not changed.
"""
