"""`ullage.Guard` under Lightning's Trainer."""

from collections.abc import Callable
from typing import Any


def test_a_guard_leaves_what_lightning_leaves(results_of: Callable[[str], Any]) -> None:
    """Parameters, outputs, what is logged and counted: alone, with faults, in parts, with a scaler, on a small card."""
    results = results_of("with_lightning")
    for what in ("guarded", "skipped", "manual"):
        assert results[what] == 0, what
    for what in ("faults", "manual faults"):
        assert results[what]["raised"] == results[what]["runs"] > 10
        assert results[what]["farthest"] == 0
    assert results["split parameters"] < 1e-12
    assert results["split"] < 1e-7  # Lightning keeps what is logged in single precision
    assert results["manual split"] < 1e-12
    assert max(results["parts"] + results["manual parts"]) <= 3
    scaled = results["scaled"]
    assert scaled["scale"] < 2.0**127, "no step was skipped, so nothing is shown of it"
    assert scaled["guarded"] == scaled["manual"] == scaled["faults"]["farthest"] == 0
    assert scaled["faults"]["raised"] == scaled["faults"]["runs"] > 3
    assert "out of memory" in results["card"]["bare"]
    assert results["card"]["guarded"] == 2
    assert any("parts from now on" in line for line in results["card"]["said"])
    assert results["docs"] == [2, 2]
    by_itself, iterator, precision = results["refused"]
    assert "uses manual optimization" in by_itself
    assert "dataloader_iter" in iterator
    assert "OwnStep has its own way to step the optimizer" in precision
