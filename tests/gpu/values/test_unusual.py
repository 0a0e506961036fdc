"""Constructs of every kind by which values decide sizes: on the card as on the CPU."""

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.forked import client

_ROOT = Path(__file__).resolve().parents[3]
# read, not imported: this process has no card, so that it cannot import torch
_UNUSUAL = [
    node.name
    for file in ("unusual.py", "rarer.py")
    for node in ast.parse(Path(__file__).with_name(file).read_text()).body
    if isinstance(node, ast.FunctionDef) and any(getattr(each, "id", "") == "unusual" for each in node.decorator_list)
]
_EVERY = """
import warnings
warnings.simplefilter("ignore")
from tests.gpu.values import unusual, rarer  # that one begins the emulation
unusual.main()
"""
_DRAWN = ("sure_choice",)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """Return what each construct gives on the CPU and on the card, and how well what it read is known."""
    environment = {name: value for name, value in os.environ.items() if name != "ULLAGE_EMULATED_CARD"}
    command = [sys.executable, "-c", _EVERY]
    done = client.run(command, cwd=_ROOT, env=environment | client.USUAL, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return {name: rest for name, *rest in lines}


@pytest.mark.parametrize("name", _UNUSUAL)
def test_sizes_are_those_of_the_cpu(found: dict[str, Any], name: str) -> None:
    """All that was read is known, but for what is sampled."""
    on_host, on_card, certainties = found[name]
    if "Cond doesn't work" in on_host:
        pytest.skip("torch 2.6 does not capture torch.cond, on the CPU either and without values")
    assert "Error" not in on_host
    assert on_card == on_host
    assert set(certainties) <= {"KNOWN", "DRAWN" if name in _DRAWN else "KNOWN"}
