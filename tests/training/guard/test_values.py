"""One error of memory at every operation of a training in turn: nothing of it can be seen in what is left."""

import pytest

from tests.shared.inside import INSIDE, SLOW, inside

if INSIDE:
    from tests.training.guard import worlds
    from tests.training.guard.faults import Faults
    from tests.training.guard.world import bare, differences, guarded, left_of

WORLDS = (
    "mlp",
    "transformer",
    "convolution",
    "lstm",
    "tied",
    "bfloat16",
    "float16_skipped",
    "accumulation",
    "accumulation_scaled",
    "two_optimizers",
    "toggled",
    "sparse_sgd",
    "sparse_adam",
)
POINTS = 1_000_000 if SLOW else 20


@pytest.mark.parametrize("name", WORLDS)
@inside
def test_a_guard_alone_changes_nothing(name: str) -> None:
    """A guarded training leaves what one leaves that has no guard."""
    build = getattr(worlds, name)
    assert differences(left_of(bare(build)), left_of(guarded(build))) == []


@pytest.mark.parametrize("name", WORLDS)
@inside
def test_a_fault_at_any_operation_changes_nothing(name: str) -> str:
    """Losses, parameters, gradients, buffers, states of optimizer and scaler and random numbers are the same bits."""
    build = getattr(worlds, name)
    counting = Faults()
    expected = left_of(guarded(build, counting))
    wrong = []
    points = range(0, counting.count, -(-counting.count // POINTS))
    for point in points:
        faults = Faults({point})
        world = guarded(build, faults)
        changed = differences(expected, left_of(world))
        if changed or faults.raised != 1 or len(world.said) > 1:
            wrong.append((point, str(counting.operations[point]), changed[:3], world.said))
    assert not wrong, f"{len(wrong)} of {len(points)}: {wrong[:5]}"
    return f"{len(points)} points of {counting.count}"
