"""`ullage.Guard` with Accelerate."""

from collections.abc import Callable
from typing import Any


def test_a_guard_leaves_what_accelerates_own_loop_leaves(results_of: Callable[[str], Any]) -> None:
    """Alone, with one fault at any operation, in parts, with a scaler that skips steps, on a card that is too small."""
    results = results_of("with_accelerate")
    assert results["guarded"] == 0
    assert results["faults"]["raised"] == results["faults"]["runs"] > 10
    assert results["faults"]["farthest"] == 0
    assert results["split"] < 1e-12
    assert max(results["parts"]) <= 3
    steps, steps_of_the_skipped = results["steps"]
    assert steps > steps_of_the_skipped, "no step was skipped, so nothing is shown of it"
    assert results["scaled"] == 0
    assert results["scaled faults"]["raised"] == results["scaled faults"]["runs"] > 5
    assert results["scaled faults"]["farthest"] == 0
    assert "out of memory" in results["card"]["bare"]
    said, epochs, is_skipped = results["card"]["guarded"]
    assert (epochs, is_skipped) == (3, False)
    assert any("parts from now on" in line for line in said)
    assert results["docs"] == 2  # an accumulation of two, three batches
    assert "DEEPSPEED runs forward, backward and the optimizer's step itself" in results["refused"]
