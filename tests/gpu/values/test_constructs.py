"""What follows from values that the host has sent: the same as on the host, and to the byte as with constant sizes."""

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client
from tests.gpu.values.quiet import RUN

_ROOT = Path(__file__).resolve().parents[3]
# read, not imported: this process has no card, so that it cannot import torch
_CONSTRUCTS = [
    node.name
    for node in ast.parse(Path(__file__).with_name("constructs.py").read_text()).body
    if isinstance(node, ast.FunctionDef) and node.decorator_list
]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Return what each construct came to, and what the process kept at its end under the name ""."""
    environment = {name: value for name, value in os.environ.items() if name != "ULLAGE_EMULATED_CARD"}
    done = client.run(
        [sys.executable, "-c", RUN, "tests.gpu.values.process"],
        cwd=_ROOT,
        env=environment | client.USUAL,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


@pytest.mark.parametrize("name", _CONSTRUCTS)
def test_a_construct_is_known(found: dict[str, Any], name: str) -> None:
    """Sizes and numbers are the host's, each event of the allocator that of constant sizes, and every read is known."""
    if name not in found:
        pytest.skip("torchvision is not installed")
    here = found[name]
    for run in ("host", "constant", "card"):
        assert "error" not in here[run], here[run]["error"]
    assert here["card"]["result"] == here["host"]["result"]
    assert here["card"]["sizes"] == here["constant"]["sizes"]
    assert here["card"]["digest"] == here["constant"]["digest"]
    assert [read for read in here["reads"] if read[3] != "KNOWN"] == []


def test_no_operator_failed_on_the_host_and_nothing_is_kept(found: dict[str, Any]) -> None:
    """What was known goes with the memory that held it."""
    assert found[""] == {"failures": {}, "kept_bytes": 0, "contents": 0}
