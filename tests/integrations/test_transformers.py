"""`ullage.Guard` under Transformers' Trainer."""

from collections.abc import Callable
from typing import Any


def test_a_guarded_trainer_leaves_what_the_trainer_leaves(results_of: Callable[[str], Any]) -> None:
    """Alone, with one fault at any operation, in parts whose labels count unevenly, on a card that is too small."""
    results = results_of("with_transformers")
    assert results["guarded"] == 0
    assert results["faults"]["raised"] == results["faults"]["runs"] > 20
    assert results["faults"]["farthest"] == 0
    assert results["labels"]["farthest"] < 1e-12
    for loss in ("tokens", "smoothed"):  # Transformers computes the losses of language models in single precision
        assert results[loss]["farthest"] < 1e-6
    assert all(max(results[loss]["parts"]) <= 3 for loss in ("labels", "tokens", "smoothed"))
    assert "out of memory" in results["card"]["bare"]
    assert results["card"]["guarded"] == 2
    assert any("parts from now on" in line for line in results["card"]["said"])
    assert results["docs"] == 3
    assert results["restored"] == {"during": False, "steps": True, "after": True}
    assert "as for LOMO" in results["refused"]
    assert "lists Guarded after its Trainer" in results["order"]
