"""Several ranks, as processes of their own that talk over gloo: values, no deadlock, and one end for all."""

import json
import os
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.guard.inside import SLOW

_ROOT = Path(__file__).parents[2]
GROUPS = (("like_ddp", "split", "gives_up", "dies"), ("on_cards", "sharded"), ("hangs",))


@cache
def run(scenarios: tuple[str, ...], ranks: int) -> list[dict[str, Any]]:
    """Run scenarios one after the other; what each rank has told of each, by its name."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.guard.rank", *scenarios],
            env=os.environ | group | {"RANK": str(rank), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        told = [process.communicate(timeout=240) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), [errors[-2000:] for _, errors in told]
    lines = [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in told]
    return [{one["scenario"]: one for one in of_rank} for of_rank in lines]


def told(scenario: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the first and the last of two ranks have told; scenarios that end in order share their processes."""
    group = next(group for group in GROUPS if scenario in group)
    first, last = run(group, 2)
    return first[scenario], last.get(scenario, {})


@pytest.mark.parametrize(
    "ranks", [2, pytest.param(4, marks=pytest.mark.skipif(not SLOW, reason="half a minute for two ranks more"))]
)
def test_a_rank_that_is_short_of_memory_at_random_moments_changes_nothing(ranks: int) -> None:
    """The same parameters on all ranks, bit for bit those of a run without faults, and DDP's own to rounding."""
    found = [one["faulty_200"] for one in run(("faulty_200",), ranks)]
    assert [one["gap"] for one in found] == [0] * ranks
    assert all(one["same"] for one in found)
    assert all(one["from_bare"] < 1e-12 for one in found)
    assert found[-1]["raised"] > 40


def test_gradients_and_buffers_are_shared_as_ddp_does() -> None:
    """BatchNorm's statistics are the first rank's; a parameter that one rank alone uses has a gradient on all."""
    for one in told("like_ddp"):
        assert max(one["gaps"]) < 1e-12


def test_all_ranks_split_as_the_one_that_has_to() -> None:
    """From the step after it on; the gradient stays the whole batch's."""
    first, last = told("split")
    assert [one["gap"] < 1e-12 and one["same"] for one in (first, last)] == [True, True]
    assert first["said"] == []
    assert last["said"]
    assert first["sizes"] == last["sizes"] == [[2, 2, 2, 2], [2, 2, 2, 2]]


def test_ranks_end_together_when_one_gives_up() -> None:
    """The one has the error of memory, the others say that a rank has failed; nobody waits."""
    first, last = told("gives_up")
    assert last["error"] == "OutOfMemoryError"
    assert first["error"] == "RankError"
    assert "a rank has failed in this step" in first["text"]
    assert first["seconds"] < 20


def test_a_rank_that_ends_is_noticed() -> None:
    first, last = told("dies")
    assert last == {}
    assert first["error"] == "RankError"
    assert "one has ended" in first["text"]


def test_a_rank_that_does_not_answer_is_waited_for_as_long_as_was_said() -> None:
    first, _ = told("hangs")
    assert first["error"] == "RankError"
    assert "did not answer within 3 s" in first["text"]
    assert 2 < first["seconds"] < 8


def test_sharded_ranks_take_as_many_parts_as_the_one_that_needs_most() -> None:
    """FSDP's own collectives stay in step; where one runs out in the middle, all end."""
    first, last = told("sharded")
    for one in (first, last):
        assert max(one["gaps"]) < 1e-12
        assert one["sizes"] == [2]
    assert last["error"] == "OutOfMemoryError"
    assert first.get("error") in (None, "RuntimeError", "RankError", "DistBackendError")


def test_a_card_that_is_too_small_on_one_rank() -> None:
    """PyTorch's allocator itself runs out there, in the first step; both ranks go on in parts of one size."""
    first, last = told("on_cards")
    assert first["ooms"] == 0
    assert first["said"] == []
    assert last["ooms"] > 0
    assert first["sizes"][0] == [12288]
    assert first["sizes"][-1] == last["sizes"][-1]
    assert max(last["sizes"][-1]) < 12288
