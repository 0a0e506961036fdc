"""What may go wrong with values on: the run goes on as without, and what is not known is not called known."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from tests.gpu.values.quiet import RUN

_ROOT = Path(__file__).resolve().parents[3]


Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def found() -> Found:
    """Return what each case came to, with values on and off."""
    environment = {name: value for name, value in os.environ.items() if name != "ULLAGE_EMULATED_CARD"}
    done = client.run(
        [sys.executable, "-c", RUN, "tests.gpu.values.faults"],
        cwd=_ROOT,
        env=environment,
        timeout=600,
        is_forked=False,  # one of them compiles
    )
    assert done.returncode == 0, done.stderr[-3000:]
    modes: Found = {"on": {}, "off": {}}
    for line in done.stdout.splitlines():
        if line.startswith("["):
            mode, name, answer = json.loads(line)
            modes[mode][name] = answer
    return modes


CASES: dict[str, list[list[str]] | None] = {
    "operator_of_the_card_only": [["number", "UNKNOWN"], ["number", "KNOWN"]],
    "operator_of_the_script": [
        *(["number", "ASSUMED"], ["number", "UNKNOWN"], ["number", "UNKNOWN"], ["number", "ASSUMED"]),
        *(["number", "KNOWN"], ["number", "UNKNOWN"]),
    ],
    "operator_of_a_package_on_large_weights": None,
    "kernel_of_triton": [["branch", "UNKNOWN"], ["branch", "UNKNOWN"], ["number", "UNKNOWN"]],
    "compiled_graph": [["number", "KNOWN"], ["number", "UNKNOWN"]],
    "errors_of_operators": [],
    "numbers_for_tensors": [],
    "out_of_memory": [],
    "storage_resized": [["number", "UNKNOWN"], ["number", "KNOWN"]],
    "storage_set": [["number", "KNOWN"], ["float", "KNOWN"]],
    "graph_of_the_card": [["branch", "UNKNOWN"]],
    "deep_chain": [["number", "KNOWN"], ["branch", "DRAWN"]],
    "mode_of_the_script": None,  # what PyTorch runs itself under a mode is known in some versions
    "subclass_of_tensor": [["number", "KNOWN"], ["branch", "KNOWN"]],
    "fake_tensors": [],
    "many_small_tensors": [["number", "KNOWN"]],
    "selective_checkpoint": [],
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_goes_on_as_without_values(found: Found, name: str) -> None:
    """Answers, errors and their texts are the same, and reads are known as well as they can be."""
    on, off = found["on"][name], found["off"][name]
    assert "error" not in on, on["error"]
    assert "error" not in off, off["error"]
    assert on["answer"] == off["answer"]
    assert CASES[name] is None or on["reads"] == CASES[name]


def test_what_failed_is_named_and_nothing_is_kept(found: Found) -> None:
    """Operators that the host cannot run are said; what was kept went with its memory."""
    failures = ["ullage_test.card_only.default", "ullage_test.fails_on_the_host.default"]
    assert found["on"][""] == {"failures": failures, "kept_bytes": 0}
    assert {name for name in found["on"] if name} == set(CASES)
