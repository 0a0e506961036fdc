"""The roles of tensors that belong to optimizers, gradients and weights, wherever a script or a library keeps them."""

from pathlib import Path
from typing import Any

import pytest

from tests.shared.commands import Predict

SCRIPT = Path(__file__).parent / "scripts" / "owners.py"
MIB = 1 << 20
# The highest number of MiB of each role in the run. The model has 4 MiB of weights. Gradients of an earlier step that
# an optimizer keeps are its state.
CASES: dict[str, dict[str, float]] = {
    "an object in the state": {"optimizer_state": 4, "gradients": 4, "parameters": 4},
    "nested objects in the state": {"optimizer_state": 4, "gradients": 4, "parameters": 4},
    "an attribute of the optimizer": {"optimizer_state": 8, "gradients": 4, "parameters": 4},
    "assigned gradients": {"gradients": 4, "parameters": 4},
    "copied gradients": {"gradients": 8, "parameters": 4},
    "sums that become gradients": {"gradients": 8, "parameters": 4},
    "main_grad": {"gradients": 4, "parameters": 2},
    "steps in the backward pass": {"gradients": 1, "parameters": 4},
    "autograd.grad": {"gradients": 4, "parameters": 4},
    "a gradient penalty": {"gradients": 4, "parameters": 4},
    "func.grad": {"gradients": 4, "parameters": 4},
    "func.vjp": {"gradients": 4, "parameters": 4},
    "a second model": {"gradients": 4, "optimizer_state": 8},
    "a created state": {"gradients": 4, "optimizer_state": 16},
    "scales in a dictionary": {"parameters": 2.25},
    "scales in a quantization state": {"parameters": 2.5},
    "scales as an attribute of the weight": {"parameters": 2.25},
    "a table of an ordinary layer": {"parameters": 1, "inputs": 1 + 8 / 1024},
    "a batch of a class": {"parameters": 4, "inputs": 0.5},
}


@pytest.mark.parametrize("case", CASES)
def test_a_tensor_has_the_role_of_its_owner(predict: Predict, case: str) -> None:
    ended = predict(SCRIPT, case, "--json")
    assert ended.code == 0, ended.error
    peaks: dict[str, Any] = ended.json["role_peaks"]
    found = {role: peaks[role] / MIB for role in CASES[case]}
    # `func.vjp` also returns a gradient by the batch, of 8 KiB.
    assert found == pytest.approx(CASES[case], abs=0.01), peaks
    if case in ("a second model", "a created state"):
        assert ended.json["roles"]["gradients"] == 4 * MIB  # in the steady step, where the peak is


def test_a_step_that_only_creates_the_state_is_not_a_training_step(predict: Predict) -> None:
    ended = predict(SCRIPT, "a created state", "--json", "--steps", "9")
    assert ended.code == 0, ended.error
    assert len(ended.json["steps"]) == 3
