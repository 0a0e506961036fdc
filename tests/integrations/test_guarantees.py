"""The guard's promise holds in every framework: the same gradients, or an error that names the reason."""

from collections.abc import Callable
from typing import Any


def test_every_framework_gives_the_same_guarantees(results_of: Callable[[str], Any]) -> None:
    """Token means and masks are split without `weight=`; items that depend on each other, or on state, are not."""
    results = results_of("with_guarantees")
    assert len(results) == 20
    for name, found in results.items():
        assert found["guarded"] == 0, name
        assert found["whole"]["raised"] == found["whole"]["runs"] > 3, name
        assert found["whole"]["farthest"] == 0, name
        if found["is split"]:
            assert found["parts"] < 1e-12, (name, found["parts"])
        else:
            assert "The batch was not split" in found["parts"], (name, found["parts"])
