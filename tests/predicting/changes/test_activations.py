"""Checkpointing and offloading: what they do to statistics, to random numbers, to parameters and to host memory."""

import sys
from pathlib import Path

import pytest

from tests.forked import client
from tests.predicting.changes.runs import bytes_of, difference, numbers_in, peaks, told_on_cpu
from tests.predicting.changes.test_model_changes import by_hand
from ullage.predicting.changes.all_changes import change_named
from ullage.predicting.changes.change import Gradients
from ullage.predicting.changes.training.facts import TrainingFacts

SCRIPTS = Path(__file__).parent / "scripts"
STATISTICS = SCRIPTS / "running_statistics.py"
BLOCKS = """
import random
import numpy
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.draws = torch.Generator("cuda")
        self.register_buffer("calls", torch.zeros(1))
        PREPARE
    def forward(self, x):
        y = self.linear(x)
        FORWARD

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
    def forward(self, x):
        for block in self.blocks:
            x = CALL
        return x

net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    net(torch.rand(512, 64, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PLAIN = "return y.relu()"
EFFECTS = {
    "pass": (PLAIN, "block(x)", ""),
    "self.linear = nn.utils.parametrizations.spectral_norm(self.linear)": (PLAIN, "block(x)", "its buffer _"),
    "a = 1": ("return y * random.random()", "block(x)", "Python's random module"),
    "b = 1": ("return y * numpy.random.rand()", "block(x)", "numpy.random"),
    "c = 1": ("return y * torch.rand(64, device='cuda', generator=self.draws)", "block(x)", "a torch.Generator"),
    "d = 1": ("self.calls += 1; return y / self.calls", "block(x)", "its buffer calls"),
    "e = 1": ("return nn.functional.dropout(y)", "block(x)", ""),
    "f = 1": ("return nn.functional.dropout(y)", "block(x=x)", "none of its positional arguments"),
    "self.norm = nn.BatchNorm1d(64)": ("return self.norm(y)", "block(x)", ""),
}


def facts_of(script: Path) -> TrainingFacts:
    facts = peaks(script, diagnose=True).training
    assert facts is not None
    return facts


@pytest.mark.by_day(3)
@pytest.mark.parametrize("prepare", EFFECTS)
def test_what_a_second_forward_pass_does_again_is_reported(prepare: str, tmp_path: Path) -> None:
    forward, call, effect = EFFECTS[prepare]
    script = tmp_path / "train.py"
    script.write_text(BLOCKS.replace("PREPARE", prepare).replace("FORWARD", forward).replace("CALL", call))
    facts = facts_of(script)
    assert facts.model is not None
    assert effect in facts.model.repeated_effect
    assert bool(effect) == bool(facts.model.repeated_effect)
    checkpoint, _ = change_named("checkpoint")
    assert checkpoint.gradients_for is not None
    assert checkpoint.gradients_for(facts) is (Gradients.UNKNOWN if effect else Gradients.SAME)


def test_the_written_checkpoints_keep_running_statistics(tmp_path: Path) -> None:
    change, setting = change_named("checkpoint=all")
    [text] = by_hand(change.recipe_for(facts_of(STATISTICS), setting)).values()
    assert text.count("def kept_statistics(block):") == 1
    script = tmp_path / "train.py"
    script.write_text(text)
    assert difference(told_on_cpu(STATISTICS), told_on_cpu(script)) < 1e-12
    made = peaks(STATISTICS, "checkpoint=all")
    assert made.changes_made == {"checkpoint=all": 5}
    assert bytes_of(peaks(STATISTICS, edited={str(STATISTICS): text})) == bytes_of(made)


# ---- saved tensors on the host

SIX = """
import torch
import torch.nn.functional as F
from torch import nn

class Block(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
    def forward(self, x):
        y = self.norm(x)
        q, k, v = (each(y).view(*x.shape[:2], 4, -1).transpose(1, 2) for each in (self.q, self.k, self.v))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.last(x))))

net = nn.Sequential(*(Block() for _ in range(3))).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    x = torch.rand(4, 128, 256, device="cuda")
    MODE
        loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
ON_HOST = """
import sys
import numpy
import ullage
ullage.emulate("T4", values="all")
import torch
if sys.argv[1]:
    from ullage.predicting.changes.all_changes import install
    loop = install([sys.argv[1]])
torch.manual_seed(0)
names = {"__name__": "__main__", "__file__": sys.argv[2]}
exec(compile(open(sys.argv[2]).read(), sys.argv[2], "exec"), names)
numpy.savez(sys.argv[3], *(value.cpu().double().flatten().numpy() for value in names["told"]))
"""


def test_parameters_stay_on_the_gpu_and_a_shared_tensor_is_copied_once(tmp_path: Path) -> None:
    script, by_torch = tmp_path / "train.py", tmp_path / "by_torch.py"
    script.write_text(SIX.replace("MODE", "if True:"))
    by_torch.write_text(SIX.replace("MODE", "with torch.autograd.graph.save_on_cpu(pin_memory=True):"))
    made, pytorchs = peaks(script, "offload=on"), peaks(by_torch)
    assert made.host is not None
    assert pytorchs.host is not None
    assert made.peak_allocated_bytes <= pytorchs.peak_allocated_bytes
    tokens, width = 4 * 128, 256
    kept = 3 * (4 * tokens * width * (1 + 3 + 1 + 1 + 1 + 2 * 4) + 8 * 4 * tokens)  # norms, q, k, v, attention, MLP
    assert kept < made.host.pinned_peak_bytes < 1.2 * kept
    assert made.host.pinned_peak_bytes < pytorchs.host.pinned_peak_bytes - 3 * 4 * 12 * width * width
    change, setting = change_named("offload=on")
    [text] = by_hand(change.recipe_for(facts_of(script), setting)).values()
    written = peaks(script, edited={str(script): text})
    assert bytes_of(written) == bytes_of(made)
    assert written.host is not None
    assert written.host.pinned_peak_bytes == made.host.pinned_peak_bytes


def test_tensors_that_come_back_from_the_host_have_their_values(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(VALUES)
    told = []
    for number, change in enumerate(("", "offload=on")):
        file = tmp_path / f"{number}.npz"
        done = client.run([sys.executable, "-c", ON_HOST, change, script, file], timeout=900)
        assert done.returncode == 0, done.stderr
        told.append(numbers_in(file))
    assert difference(*told) == 0


VALUES = """
import torch
import torch.nn.functional as F

weight = torch.nn.Parameter(torch.rand(8, 8, device="cuda"))
other = torch.nn.Parameter(torch.rand(8, 8, device="cuda"))
module = torch.nn.Module()
module.weight, module.other = weight, other

def forward(x):
    y = x @ weight
    z = y.sin() * y.cos() + y.t().exp()          # one tensor, saved whole and transposed
    changed = y.clone()
    first = changed.square()
    again = (changed * 2).tanh()
    parts = z.view(2, 32)[1].square() + z.flatten()[:32].square()
    mask = (z > 1).float() * z
    dropped = F.dropout(z, 0.5)
    return (z @ other).sum() + first.mean() + again.sum() + parts.mean() + mask.square().sum() + dropped.square().sum()

module.forward = forward
optimizer = torch.optim.SGD([weight, other], lr=0.01)
told = []
for _ in range(3):
    optimizer.zero_grad()
    loss = module(torch.rand(8, 8, device="cuda"))
    loss.backward()
    told += [loss.detach().clone(), weight.grad.clone(), other.grad.clone()]
    optimizer.step()
"""
