"""The benchmarks of the guard measure what they say, and what they say of the guard without a clock holds."""

import re
import sys
from pathlib import Path

import pytest

from tests.forked import client
from tests.shared.fresh import answer

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "benchmarks" / "guard"
PROLOGUE = f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that counts calls."""
    sys.path.insert(0, str(FOLDER))
    try:
        from counted import build
    finally:
        sys.path.remove(str(FOLDER))
    return str(build(tmp_path_factory.mktemp("counted")))


def test_each_call_is_counted(library: str) -> None:
    """A synchronisation, a read, an allocation and a free of CUDA are counted once each; kernels, too."""
    counts = answer(
        PROLOGUE
        + f"""
from counted import counting
from pathlib import Path
calls = counting(Path({library!r}))
import ullage
ullage.emulate("T4")
import torch
found = []
def count(work):
    before = calls()
    kept = work()
    after = calls()
    found.append([after[name] - before[name] for name in after])
    return kept
x = count(lambda: torch.empty(1 << 20, device="cuda"))
count(torch.cuda.synchronize)
count(torch.cuda.current_stream().synchronize)
count(lambda: x[0].item())
count(lambda: x.add_(1))
del x
count(torch.cuda.empty_cache)
tell(found)
""",
        is_forked=False,
    )
    assert counts == [
        [0, 0, 1, 0, 0],
        [1, 0, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 0, 0, 1],
        [counts[5][0], 0, 0, 1, 0],
    ]


def test_a_guard_asks_nothing_more_of_the_card(library: str) -> None:
    """With and without a guard, steps synchronise, read, allocate and free as often, and no parameter is copied: what
    is more at the peak is the norm that was clipped by, or the copies of BatchNorm's statistics."""
    found = answer(
        PROLOGUE
        + f"""
import gc
from counted import counting
from pathlib import Path
calls = counting(Path({library!r}))
import overhead
overhead.ullage.emulate("T4", values="off")
overhead.COUNTED_STEPS = 4
def counts(name, way):
    gc.collect()
    return overhead.counts(name, way, calls)
tell([[counts(name, way) for way in ("bare", "guarded")] for name in overhead.MODELS])
""",
        is_forked=False,
    )
    for (bare, guarded), copied in zip(found, (0, 512, 16 << 10), strict=True):
        for call in ("synchronisations", "reads of the card", "cudaMalloc", "cudaFree"):
            assert guarded[call] == bare[call], call
        assert bare["kernels"] > 0
        assert guarded["peak"] - bare["peak"] <= copied


def test_the_guard_loses_nothing_beside_its_rivals() -> None:
    """Under every schedule of faults the guard makes every step, with each item counted once, and the parameters of the
    run without faults; a loop that skips does not, so the schedules do fail somebody."""
    command = [sys.executable, FOLDER / "rivals.py", "--only", "Guard", "skips"]
    done = client.run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall("ullage.Guard +48 +0 +0 +0 .* yes", done.stdout)) == 4
    assert len(re.findall("a loop that skips +48 +0 +0 +0 .* yes", done.stdout)) == 1  # where no error is raised
