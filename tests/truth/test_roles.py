"""`ullage predict` on every recorded workload: its peaks and roles are the recorded bytes, and nothing is unknown."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.forked import client
from tests.shared.fresh import USUAL
from tests.truth.record import CONTEXT_BYTES, Record
from tests.truth.runner import ROOT, STEPS

pytestmark = pytest.mark.truth
_UNKNOWN_SHARE = 0.01


def predict(record: Record) -> dict[str, Any]:
    """Run `ullage predict --json` on a workload as a user would, on the record's card."""
    command = ["predict", "tests/truth/workloads.py", record.name, "--json", "--gpu", "H100", "--steps", str(STEPS)]
    command += ["--placement", "windows"]  # the records' emulator puts segments one above the other, too
    sizes = {"total-memory": record.card.total, "context": CONTEXT_BYTES, "cudnn-workspace": 0}
    options = [part for name, size in sizes.items() for part in (f"--{name}", f"{size} B")]
    done = client.run([sys.executable, "-m", "ullage", *command, *options], cwd=ROOT, env=os.environ | USUAL)
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stderr}"
    prediction: dict[str, Any] = json.loads(done.stdout)
    return prediction


def violations(record: Record, prediction: Mapping[str, Any]) -> list[str]:
    """List the rules that a prediction breaks, one line each."""
    return [
        f"{record.name}: {rule}: expected {expected}, got {got}"
        for rule, expected, got in _rules(record, prediction)
        if expected != got
    ]


def _rules(record: Record, prediction: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield every rule: its name, what is expected, and what the prediction says."""
    roles, peaks, allocated = prediction["roles"], prediction["role_peaks"], prediction["peak_allocated_bytes"]
    # Only a step of training makes gradients.
    trains = any(step["complete"] for step in prediction["steps"])
    yield "steps trained", STEPS if record.name != "gpt2s_infer_no_grad" else 0, _complete(prediction)
    yield "peak allocated", record.peak("allocated_bytes.all.peak"), allocated
    yield "peak reserved", record.peak("reserved_bytes.all.peak"), prediction["peak_reserved_bytes"]
    yield "sum of the roles at the peak", allocated, sum(roles.values())
    yield "parameters, most at once", record.param_bytes, peaks["parameters"]
    yield "parameters at the peak", record.param_bytes, roles["parameters"]
    yield "gradients, most at once", record.trainable_bytes if trains else 0, peaks["gradients"]
    yield "optimizer state, most at once", record.optimizer_bytes, peaks["optimizer_state"]
    yield "buffers, most at once", record.buffer_bytes, peaks["buffers"]
    yield "buffers at the peak", record.buffer_bytes, roles["buffers"]
    yield "less than 1 % unknown", True, roles["unknown"] < _UNKNOWN_SHARE * allocated
    yield "functions that answered 'not supported'", {}, prediction["unwritten"]
    # A step of a prediction ends with the optimizer's, and one of a record with the loss read: the same to the peaks,
    # but for the first, which begins with the script.
    for step in prediction["steps"][1:STEPS] if trains else ():
        recorded = record.moments[f"step {step['step']}"]
        for what in ("allocated", "reserved"):
            yield (
                f"step {step['step']}, peak {what}",
                recorded[f"{what}_bytes.all.peak"],
                step[f"peak_{what}_bytes"],
            )


def _complete(prediction: Mapping[str, Any]) -> int:
    return sum(step["complete"] for step in prediction["steps"])


def test_roles_and_peaks_of_a_prediction_are_the_recorded_bytes(h100_record: Record) -> None:
    """What `ullage predict` says of a script adds up, and is what PyTorch counted without it."""
    assert not (found := violations(h100_record, predict(h100_record))), "\n".join(found)


def prediction_that_keeps_the_rules(record: Record) -> dict[str, Any]:
    """The part of a prediction that the rules look at, with nothing to find fault with."""
    allocated = record.peak("allocated_bytes.all.peak")
    owned = {"parameters": record.param_bytes, "buffers": record.buffer_bytes, "unknown": 1}
    return {
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": record.peak("reserved_bytes.all.peak"),
        "roles": owned | {"activations": allocated - sum(owned.values())},
        "role_peaks": {
            "parameters": record.param_bytes,
            "gradients": record.trainable_bytes,
            "optimizer_state": record.optimizer_bytes,
            "buffers": record.buffer_bytes,
        },
        "steps": [
            {
                "step": number,
                "complete": True,
                "peak_allocated_bytes": record.moments[f"step {number}"]["allocated_bytes.all.peak"],
                "peak_reserved_bytes": record.moments[f"step {number}"]["reserved_bytes.all.peak"],
            }
            for number in range(1, STEPS + 1)
        ],
        "unwritten": {},
    }


@pytest.mark.parametrize("field", ["roles", "role_peaks"])
def test_the_rules_find_one_byte_in_one_role(small: Record, field: str) -> None:
    """A role that is one byte off at the peak, or at its own, is found."""
    kept = prediction_that_keeps_the_rules(small)
    assert violations(small, kept) == []
    for role in kept[field]:
        broken = kept | {field: kept[field] | {role: kept[field][role] + 1}}
        assert violations(small, broken), role


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"peak_reserved_bytes": 1}, "peak reserved"),
        ({"unwritten": {"cudaFree": 1}}, "not supported"),
        ({"roles": {"parameters": 0, "buffers": 0, "unknown": 1 << 30}}, "less than 1 % unknown"),
        ({"steps": []}, "steps trained"),
    ],
)
def test_the_rules_find_what_is_broken(small: Record, change: dict[str, Any], rule: str) -> None:
    """Each rule beside the roles can be broken, and says so."""
    found = violations(small, prediction_that_keeps_the_rules(small) | change)
    assert any(rule in line for line in found)
