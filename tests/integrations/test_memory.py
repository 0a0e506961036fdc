"""Callbacks that watch memory, with the real frameworks on an emulated card."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.shared.fresh import answer

NAMES = ("alloc_retries", "allocated_bytes", "growth_bytes_per_step", "peak_allocated_bytes", "reserved_bytes")
KEPT_BYTES = 64 << 10


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What all trainings have left; frameworks are imported once."""
    code = """
        import sys
        sys.path.insert(0, %r)
        import ullage
        ullage.emulate("T4")
        from tests.integrations.with_memory import results
        tell(results())
    """
    found: dict[str, Any] = answer(code % str(Path(__file__).parents[2]), environment={"OMP_NUM_THREADS": "1"})
    return found


def _has_one_leak(said: list[str]) -> bool:
    return len(said) == 1 and "keeps 64.0 KiB more" in said[0] and "with_memory.py:" in said[0]


def test_lightning_logs_memory_when_it_logs(results: dict[str, Any]) -> None:
    """With the loss's steps, exact to the byte; each phase has its own names; a leak is told once."""
    told = results["lightning"]
    assert told["names"] == sorted(
        f"memory/{phase}/{name}" for phase in ("train", "validate", "test") for name in NAMES
    )
    assert told["steps"] == told["loss steps"] == list(range(6, 60, 7))
    assert {after - before for before, after in pairwise(told["allocated"])} == {7 * KEPT_BYTES}
    # The peak begins anew when it was logged: it stays close to what is allocated then, and above it.
    assert all(0 <= peak - now < KEPT_BYTES for peak, now in zip(told["peaks"], told["allocated"], strict=True))
    assert (told["validated"], told["tested"]) == (1, 1)
    assert _has_one_leak(told["said"]), told["said"]
    assert "leak" in told["found"]  # of fit, although a test came after it
    assert told["history"] is False


def test_lightning_on_the_host_logs_no_memory(results: dict[str, Any]) -> None:
    """A Trainer that does not use the card has nothing to say of it."""
    assert results["lightning on the host"]["names"] == ["epoch", "loss", "step"]


def test_transformers_logs_memory_with_the_loss(results: dict[str, Any]) -> None:
    """In `log_history` always; to what reports (here TensorBoard, for real), where the callback stands before it."""
    told = results["transformers"]
    assert told["steps"] == list(range(7, 60, 7))
    assert {after - before for before, after in pairwise(told["allocated"])} == {7 * KEPT_BYTES}
    assert told["evaluated"] == [30, 60]
    assert told["drawn"] == {
        **{f"train/memory_{name}": [*range(7, 60, 7), 60] for name in NAMES},
        **{f"eval/memory_{name}": [30, 60] for name in NAMES},
    }
    assert told["phases"] == ["eval", "train"]
    assert _has_one_leak(told["said"]), told["said"]
    behind = results["transformers by callbacks"]
    assert behind["drawn"] == {}
    assert behind["steps"] == told["steps"]
    assert len(behind["allocated"]) == len(told["allocated"])


def test_accelerates_other_trackers_log_memory(results: dict[str, Any]) -> None:
    """Beside what is logged, at the same step; what the user has passed stays as it is; `end_training` ends it."""
    told = results["accelerate"]
    assert told["drawn"] == {name: [0, 20, 40] for name in ("loss", *(f"memory/{name}" for name in NAMES))}
    assert {after - before for before, after in pairwise(told["allocated"])} == {20 * KEPT_BYTES}
    assert told["logged"] == {"loss": 1.0}
    assert told["named"] is True
    assert told["steps"] == [60, 60]
    assert _has_one_leak(told["said"]), told["said"]


def test_scalars_are_what_pytorch_says(results: dict[str, Any]) -> None:
    """Whole numbers under names that TensorBoard groups; none, and no CUDA, where CUDA has not been used."""
    assert results["unused"] == [{}, False]
    told = results["scalars"]
    assert told["drawn"] == {f"memory/{name}": 3 for name in NAMES}
    assert [told["now"][name] for name in ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes")] == told[
        "torch"
    ]
    assert told["now"]["growth_bytes_per_step"] == 0
    assert told["kinds"] == ["int"]


def test_what_the_page_says_runs(results: dict[str, Any]) -> None:
    """All pieces of Python of its section, and something is logged by each that logs at once."""
    blocks, logged, callbacks = results["docs"]
    assert (blocks, callbacks) == (4, 1)
    assert logged == 2 * (1 + 1 + len(NAMES))  # the loss and memory; for each of two steps all at once, and each alone
