"""No tensor of an attempt that failed is alive when the next one begins, and none is left after a thousand of them."""

from typing import Any

import pytest

from tests.shared.inside import INSIDE, SLOW, inside

if INSIDE:
    import gc

    import torch

    from tests.training.guard import worlds
    from tests.training.guard.faults import Faults
    from tests.training.guard.made import Made
    from tests.training.guard.world import guard_of, guarded

POINTS = 1_000_000 if SLOW else 16


def _watched(name: str, faults: "Made") -> None:
    world = getattr(worlds, name)()
    loss_of = world.loss_of

    def begun(batch: Any) -> Any:
        faults.begin()
        loss = loss_of(batch)
        return loss, {"prediction": loss * 2}

    world.loss_of = begun
    guard = guard_of(world)
    if world.scaler:
        world.scaler.scale(torch.zeros(1))  # its scale is made in the first step, and stays
    with faults:
        for number, batch in enumerate(world.batches):
            world.begin(number)
            guard.step(batch, world.loss_of, update=False)
            faults.end()
            if world.updates(number):
                guard.update()


@pytest.mark.parametrize(
    "name", ["mlp", "transformer", "convolution", "lstm", "tied", "bfloat16", "accumulation", "sparse_sgd"]
)
@inside
def test_nothing_of_a_failed_attempt_is_alive_when_the_next_begins(name: str) -> str:
    """Whatever operation of forward or backward fails: outputs, saved tensors and gradients are all gone."""
    counting = Made()
    _watched(name, counting)
    points = range(0, counting.count, -(-counting.count // POINTS))
    left, checked = [], 0
    for point in points:
        faults = Made({point, point + 1} if point % 2 else {point})
        _watched(name, faults)
        left += [(point, str(counting.operations[point]), one) for one in faults.left]
        checked += faults.checked
    assert not left, f"{len(left)} of {checked}: {left[:5]}"
    assert checked > 3 * len(points)
    return f"{len(points)} points of {counting.count}, {checked} tensors"


@inside
def test_the_watch_sees_what_is_alive() -> None:
    """A tensor that the loss function keeps is found: the test above can fail."""
    kept = []
    faults = Made({3})
    with faults:
        for _ in range(2):
            faults.begin()
            try:
                x = torch.ones(3)
                kept.append(x.exp())
                x.sin().cos()
            except torch.OutOfMemoryError:
                del x
    assert len(faults.left) == 1
    assert "exp" in faults.left[0]


@inside
def test_a_thousand_faults_leave_nothing() -> str:
    """The number of tensors that Python knows, and of objects of the guard, is what it was before a thousand errors."""

    def alive() -> tuple[int, int]:
        gc.collect()
        objects = gc.get_objects()
        return (
            sum(isinstance(one, torch.Tensor) for one in objects),
            sum(type(one).__module__.startswith("ullage.") for one in objects),
        )

    counting = Faults()
    guarded(worlds.mlp, counting)
    world = worlds.mlp()
    guard = guard_of(world)
    batch = world.batches[0]
    for _ in range(3):
        guard.step(batch, world.loss_of)
    guard.events.clear()
    before = alive()
    raised = number = 0
    while raised < 1000:
        number += 1
        with Faults({number * 7 % 37, number * 11 % 37}) as in_step:
            guard.step(batch, world.loss_of, update=False)
        with Faults({number * 7 % 19, number * 11 % 23, number * 13 % 29}) as in_update:
            guard.update()
        raised += in_step.raised + in_update.raised
    world.said.clear()
    guard.events.clear()
    assert alive() == before
    return f"{raised} errors in {number} steps"
