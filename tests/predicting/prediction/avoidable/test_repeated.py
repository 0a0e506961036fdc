"""Results that a forward pass computes several times, and copies of expanded tensors: found with their gain."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.unexpected_costs import SCRIPTS
from tests.forked import client
from ullage.predicting.prediction.data.avoidable_memory import AvoidableKind
from ullage.predicting.prediction.data.prediction import Prediction
from ullage.predicting.prediction.predict import predict
from ullage.predicting.prediction.request import Request

REPEATED, EXPANDED = AvoidableKind.REPEATED_RESULTS, AvoidableKind.EXPANDED_COPIES
MIB = 1 << 20
HEAD = """
import sys
import torch
import torch.nn.functional as F
from torch import nn
BEFORE = "changed" not in sys.argv
x = torch.rand(16, 512, 256, device="cuda")
"""
SCRIPTS_OF_OURS = {
    "a transposed input of three layers": """
layers = nn.ModuleList(nn.Linear(512, 64) for _ in range(3)).cuda()
y = x.transpose(1, 2) if BEFORE else x.transpose(1, 2).contiguous()
sum(layer(y).square().mean() for layer in layers).backward()
""",
    "an input cast for each adapter": """
layers = nn.ModuleList(nn.Linear(256, 8) for _ in range(3)).cuda()
y = x.bfloat16() if BEFORE else x.bfloat16().float()
sum(layer(y.float() if BEFORE else y).square().mean() for layer in layers).backward()
""",
    "a causal mask made in each layer": """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(256, 768)
    def forward(self, x, mask):
        q, k, v = self.qkv(x).chunk(3, -1)
        if mask is None:
            mask = torch.full((4096, 512), float("-inf"), device="cuda").triu(1)
        return x + ((q @ k.transpose(1, 2)) * mask[:512]).relu() @ v
layers = nn.ModuleList(Layer() for _ in range(4)).cuda()
mask = None if BEFORE else torch.full((4096, 512), float("-inf"), device="cuda").triu(1)
for layer in layers:
    x = layer(x, mask)
x.mean().backward()
""",
    "a mask converted by hand in each layer": """
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(256, 256)
    def forward(self, x, mask):
        if BEFORE:
            mask = mask.to(x.dtype) * -1e9 + 1
        return x + self.proj(x * mask)
layers = nn.ModuleList(Layer() for _ in range(4)).cuda()
mask = torch.rand(16, 512, 256, device="cuda") > 0.1
if not BEFORE:
    mask = mask.to(x.dtype) * -1e9 + 1
for layer in layers:
    x = layer(x, mask)
x.mean().backward()
""",
}
CLEAN = {
    "copies that are changed afterwards": """
kept = []
for number in range(4):
    y = x.clone()
    y[number] += 1
    kept.append(y)
""",
    "a copy from before a change": """
before = [x.clone(), x.clone()]
for each in before:
    each.mul_(torch.rand_like(each))
""",
    "random numbers": """
kept = [F.dropout(x) for _ in range(3)] + [torch.rand_like(x) for _ in range(3)]
""",
    "different constants": """
kept = [x * number for number in range(2, 6)] + [x[:, number:].exp() for number in range(4)]
""",
    "results that are not alive together": """
for _ in range(4):
    y = x.exp()
    del y
""",
    "states that begin with zeros": """
kept = [torch.zeros_like(x) for _ in range(4)]
""",
}


def predicted(script: Path, *arguments: str, diagnose: bool = False) -> Prediction:
    return client.call(predict, replace(Request.of(script, arguments, gpu="H100"), diagnose=diagnose))


def gain_of(script: Path, kind: AvoidableKind) -> tuple[int, int]:
    found = predicted(script, diagnose=True)
    [row] = [each for each in found.avoidable if each.kind is kind]
    assert row.gain_bytes is not None
    assert row.line is not None
    return found.peak_allocated_bytes - row.gain_bytes, predicted(script, "changed").peak_allocated_bytes


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("name", "kind", "surplus"),
    [
        ("bool_mask", REPEATED, 17 * MIB),  # the changed script keeps the bool mask, and its first conversion, as well
        ("frozen_weight_under_autocast", REPEATED, 257 * MIB),  # the changed script drops the float32 weight
        (
            "batched_weight",
            EXPANDED,
            513 * MIB,
        ),  # the changed script has no copy of that size in the backward pass either
    ],
)
def test_public_costs_are_found(name: str, kind: AvoidableKind, surplus: int) -> None:
    without, changed = gain_of(SCRIPTS / f"{name}.py", kind)
    assert abs(without - changed) <= surplus


@pytest.mark.by_day(2)
@pytest.mark.parametrize("name", SCRIPTS_OF_OURS)
def test_a_result_that_is_computed_again_is_found(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + SCRIPTS_OF_OURS[name])
    without, changed = gain_of(script, REPEATED)
    assert abs(without - changed) <= 4 * MIB  # the changed scripts free some tensors earlier, or keep others


@pytest.mark.by_day(2)
@pytest.mark.parametrize("name", CLEAN)
def test_blocks_that_are_needed_are_not_called_repeated(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{HEAD}{CLEAN[name]}")
    found = predicted(script, diagnose=True)
    assert not [each for each in found.avoidable if each.kind in (REPEATED, EXPANDED)]
