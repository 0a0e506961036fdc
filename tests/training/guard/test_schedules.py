"""Errors of memory at two and more operations: a guard holds in its own recovery too, and gives up whole."""

import random

import pytest

from tests.shared.inside import INSIDE, SLOW, inside

if INSIDE:
    import torch
    from torch import nn

    from tests.training.guard import worlds
    from tests.training.guard.faults import Faults
    from tests.training.guard.world import World, differences, guard_of, guarded, left_of

PAIRS = 400 if SLOW else 24
SCHEDULES = 400 if SLOW else 16
MOST_SCHEDULES = 400
"""About one schedule in twelve has a split."""


@pytest.mark.parametrize("name", ["mlp", "convolution", "accumulation", "bfloat16", "two_optimizers"])
@inside
def test_a_fault_in_the_recovery_changes_nothing(name: str) -> str:
    """A second error at any of the six operations that follow the first leaves the same bits."""
    build = getattr(worlds, name)
    counting = Faults()
    expected = left_of(guarded(build, counting))
    pairs = [(first, first + gap) for first in range(counting.count) for gap in range(1, 7)]
    wrong = []
    chosen = pairs[:: -(-len(pairs) // PAIRS)]
    for pair in chosen:
        world = guarded(build, Faults(pair))
        changed = differences(expected, left_of(world))
        if changed:
            wrong.append((pair, str(counting.operations[pair[0]]), changed[:3], world.said))
    assert not wrong, f"{len(wrong)} of {len(chosen)}: {wrong[:4]}"
    return f"{len(chosen)} pairs of {len(pairs)}"


@pytest.mark.parametrize("name", ["mlp", "lstm", "sparse_adam"])
@inside
def test_two_faults_anywhere_change_nothing(name: str) -> str:
    """Any two errors in a training leave the same bits."""
    build = getattr(worlds, name)
    counting = Faults()
    expected = left_of(guarded(build, counting))
    chance = random.Random(name)
    for _ in range(SCHEDULES):
        at = chance.sample(range(counting.count), 2)
        world = guarded(build, Faults(at))
        assert differences(expected, left_of(world)) == [], (at, world.said)
    return f"{SCHEDULES} pairs"


def _exact() -> "World":
    """Float64 and no dropout, with BatchNorm that is frozen: split or whole, the gradient is the same."""
    torch.manual_seed(12)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    batches = [(torch.randn(6, 4).double(), torch.randn(6, 3).double()) for _ in range(4)]
    return World(
        model=model,
        optimizers=[optimizer],
        batches=batches,
        loss_of=worlds.squared(model),
        options={"clip_grad_norm": 0.5, "batchnorm": "freeze"},
    )


@inside
def test_many_faults_split_or_give_up_whole() -> str:
    """After any schedule of errors what is left is within 1e-12; a step that was given up is taken again."""
    counting = Faults()
    expected = left_of(guarded(_exact, counting))
    given_up = splits = raised = seed = 0
    while seed < SCHEDULES // 2 or (not splits and seed < MOST_SCHEDULES):
        seed += 1
        chance = random.Random(seed)
        starts = chance.sample(range(counting.count), chance.randint(3, 12))
        at: set[int] = set()
        for point in sorted({start + gap for start in starts for gap in range(chance.randint(1, 2))}):
            if not at.issuperset(range(point - 3, point)):
                at.add(point)  # an operation that fails three times runs on the host, where no card runs out
        faults = Faults(at)
        world = _exact()
        guard = guard_of(world)
        with faults:
            for batch in world.batches:
                given_up += _until_it_is_taken(world, guard, batch)
        splits += any("parts" in line for line in world.said)
        raised += faults.raised
        assert differences(expected, left_of(world), within=1e-12) == [], (seed, world.said)
    assert splits
    return f"{seed} schedules, {raised} errors, {splits} with a split, {given_up} steps given up"


def _until_it_is_taken(world: "World", guard: object, batch: object) -> int:
    """Take a step, again where it was given up; return how often it was. Nothing may have changed then."""
    given_up = 0
    step = lambda: world.losses.append(guard.step(batch, world.loss_of, update=False))  # noqa: E731
    for take in (step, guard.update):
        while True:
            with torch.utils._python_dispatch._disable_current_modes():
                before = left_of(world)
            try:
                take()
                break
            except torch.OutOfMemoryError:
                given_up += 1
                with torch.utils._python_dispatch._disable_current_modes():
                    changed = [
                        name
                        for name in differences(before, left_of(world))
                        if take is not step or not name.startswith("gradient")
                    ]
                assert changed == [], (changed, world.said)
    return given_up
