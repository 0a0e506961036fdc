"""What counts as a step where no optimizer of torch.optim steps."""

import pytest

from tests.shared.commands import Predict

MIB = 1 << 20
NOTE = "the script has no optimizer of torch.optim, so each backward pass counts as a step"


def _printed(error: str) -> int:
    """How many steps the script itself has told."""
    return len([line for line in error.splitlines() if line.startswith("step ")])


@pytest.mark.parametrize("how", ["modules", "functional", "two losses"])
def test_backward_passes_count_where_there_is_no_optimizer(predict: Predict, how: str) -> None:
    """The run is stopped after three steps; the state that the first update makes is there in the second."""
    ended = predict("steps_by_hand.py", how, 0, "--json", "--output")
    assert ended.code == 0, ended.error
    assert ended.json["ended"] == "steps"
    assert NOTE in ended.json["notes"]
    assert [step["complete"] for step in ended.json["steps"]] == [True] * 3
    assert ended.json["settled"]
    assert _printed(ended.error) == 3
    first = ended.json["steps"][0]
    assert first["end_allocated_bytes"] >= 2 * 4 * MIB  # the weight and its velocity: the update is the step's own


def test_the_last_step_of_a_script_that_ends_counts(predict: Predict) -> None:
    ended = predict("steps_by_hand.py", "modules", 2, "--json")
    assert ended.code == 0, ended.error
    assert ended.json["ended"] == "ended"
    assert [step["complete"] for step in ended.json["steps"]] == [True] * 2


def test_an_optimizer_that_is_made_later_counts_alone(predict: Predict) -> None:
    """Four backward passes are one step of it, and those before it are of no step of their own."""
    ended = predict("steps_by_hand.py", "optimizer", 0, "--json", "--output", "--steps", "2")
    assert ended.code == 0, ended.error
    assert len(ended.json["steps"]) == 2
    assert NOTE not in ended.json["notes"]
    assert _printed(ended.error) == 7  # it is stopped within the eighth's
    assert set(ended.json["seconds"]) == {"total", "import", "step_1", "step_2"}


def test_a_run_goes_on_past_the_capture_of_a_cuda_graph(predict: Predict) -> None:
    """Three warm-up steps are not the end: the graph's memory is its own, and its replays are steps."""
    ended = predict("captures_graph.py", "captures", "--json", "--output")
    assert ended.code == 0, ended.error
    steps = ended.json["steps"]
    assert ended.json["ended"] == "steps"
    assert len(steps) >= 5  # three to warm up, the capture's own, and a replay
    assert steps[3]["peak_allocated_bytes"] > max(step["peak_allocated_bytes"] for step in steps[:3])
    assert ended.json["peak_allocated_bytes"] == steps[3]["peak_allocated_bytes"]
    assert any(line.startswith("captured") for line in ended.error.splitlines())
    short = predict("captures_graph.py", "captures", "--json", "--steps", "3").json
    assert len(short["steps"]) == 3  # --steps means what it says


def test_a_capture_that_never_comes_is_waited_for_for_twenty_steps(predict: Predict) -> None:
    ended = predict("captures_graph.py", "never", "--json")
    assert ended.code == 0, ended.error
    assert len(ended.json["steps"]) == 3 + 20
