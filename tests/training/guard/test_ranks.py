"""Several ranks, as processes of their own that talk over gloo: values, no deadlock, and one end for all."""

import pytest

from tests.shared.inside import INSIDE, SLOW, inside

if INSIDE:
    from tests.training.guard.rank import run


@pytest.mark.parametrize(
    "ranks", [2, pytest.param(4, marks=pytest.mark.skipif(not SLOW, reason="half a minute for two ranks more"))]
)
@inside
def test_a_rank_that_is_short_of_memory_at_random_moments_changes_nothing(ranks: int) -> None:
    """The same parameters on all ranks, bit for bit those of a run without faults, and DDP's own to rounding."""
    found = run("faulty_200", ranks)
    assert [one["gap"] for one in found] == [0] * ranks
    assert all(one["same"] for one in found)
    assert all(one["from_bare"] < 1e-12 for one in found)
    assert found[-1]["raised"] > 40


@inside
def test_gradients_and_buffers_are_shared_as_ddp_does() -> None:
    """BatchNorm's statistics are the first rank's; a parameter that one rank alone uses has a gradient on all."""
    for one in run("like_ddp"):
        assert max(one["gaps"]) < 1e-12


@inside
def test_all_ranks_split_as_the_one_that_has_to() -> None:
    """From the step after it on; the gradient stays the whole batch's."""
    first, last = run("split")
    assert [one["gap"] < 1e-12 and one["same"] for one in (first, last)] == [True, True]
    assert first["said"] == []
    assert last["said"]
    assert first["sizes"] == last["sizes"] == [[2, 2, 2, 2], [2, 2, 2, 2]]


@inside
def test_ranks_end_together_when_one_gives_up() -> None:
    """One rank raises the out-of-memory error; the others raise an error that a rank has failed, and do not wait."""
    first, last = run("gives_up")
    assert last["error"] == "OutOfMemoryError"
    assert first["error"] == "RankError"
    assert "a rank failed in this step" in first["text"]


@inside
def test_a_rank_that_ends_is_noticed() -> None:
    first, last = run("dies")
    assert last == {}
    assert first["error"] == "RankError"
    assert "a rank has ended" in first["text"]


@inside
def test_a_rank_that_does_not_answer_is_waited_for_as_long_as_was_said() -> None:
    first, _ = run("hangs")
    assert first["error"] == "RankError"
    assert "did not answer within 3 s" in first["text"]


@inside
def test_sharded_ranks_take_as_many_parts_as_the_one_that_needs_most() -> None:
    """FSDP's own collectives stay in step; where one runs out in the middle, all end."""
    first, last = run("sharded")
    for one in (first, last):
        assert max(one["gaps"]) < 1e-12
        assert one["sizes"] == [2]
    assert last["error"] == "OutOfMemoryError"
    assert first.get("error") in (None, "RuntimeError", "RankError", "DistBackendError")


@inside
def test_a_card_that_is_too_small_on_one_rank() -> None:
    """PyTorch's allocator itself runs out there, in the first step; both ranks go on in parts of one size."""
    first, last = run("on_cards")
    assert first["ooms"] == 0
    assert first["said"] == []
    assert last["ooms"] > 0
    assert first["sizes"][0] == [12288]
    assert first["sizes"][-1] == last["sizes"][-1]
    assert max(last["sizes"][-1]) < 12288
