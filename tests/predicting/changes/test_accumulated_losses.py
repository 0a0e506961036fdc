"""Losses that are no mean over items: weighed rightly in parts, or said to have other gradients."""

import json
import sys
from pathlib import Path

import pytest

from tests.forked import client
from tests.predicting.changes.runs import bytes_of, difference, peaks, told_on_cpu
from ullage.predicting.changes.accumulation.accumulate import CHANGE
from ullage.predicting.changes.change import Gradients
from ullage.predicting.changes.training.facts import LossForm
from ullage.predicting.editing.apply import edited

SCRIPT = """
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 512), torch.nn.GELU(), torch.nn.Linear(512, 10)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
targets = torch.arange(36) % 10
IGNORE
weights = torch.rand(10).to("cuda")
loader = DataLoader(TensorDataset(torch.randn(36, 16), targets), batch_size=12)
for x, y in loader:
    x, y = x.to("cuda"), y.to("cuda")
    optimizer.zero_grad()
    loss = LOSS
    loss.backward()
    optimizer.step()
told = [parameter.detach().cpu() for parameter in model.parameters()]
"""
IGNORE = "targets[::5] = targets[:4] = -100"
FORMS = {
    "F.cross_entropy(model(x), y)": LossForm.COUNTED,
    "F.cross_entropy(model(x), y, reduction='sum')": LossForm.SUM,
    "F.nll_loss(model(x).log_softmax(1), y)": LossForm.COUNTED,
    "F.mse_loss(model(x)[:, 0], y * 1.0)": LossForm.MEAN,
    "(model(x)[:, 0] - y).square().mean()": LossForm.MEAN,
    "F.cross_entropy(model(x), y, reduction='none').mean()": LossForm.MEAN,
    "F.mse_loss(model(x)[:, 0], y * 1.0) / 3 + model(x).mean()": LossForm.MEAN,
    "model(x).square().sum()": LossForm.SUM,
    "model(x).square().sum() * 1": LossForm.SUM,
    "model(x).square().sum() / 12": LossForm.OTHER,
    "model(x).square()[y > 5].mean()": LossForm.OTHER,
    "F.cross_entropy(model(x), y, weight=weights)": LossForm.OTHER,
    "F.cross_entropy(model(x), y, label_smoothing=0.1)": LossForm.OTHER,
    "model(x).square().mean() + model(x).sum()": LossForm.OTHER,
    "F.cross_entropy(model(x), y) + model(x).mean()": LossForm.OTHER,
    "(model(x) @ model(x).T).square().mean()": LossForm.OTHER,
    "model(x).square().mean().sqrt()": LossForm.OTHER,
    "model(x).square().mean() * model(x).mean()": LossForm.OTHER,
    "(model(x).square() * (y != 3)[:, None]).sum() / (y != 3).sum()": LossForm.OTHER,
    "model(x).logsumexp((0, 1))": LossForm.OTHER,
}
_READ = """
import json, sys
import ullage
ullage.emulate("T4")
import torch
import torch.nn.functional as F
from ullage.predicting.changes.training.loss_form import form_of_loss
model, weights = torch.nn.Linear(16, 10).cuda(), torch.rand(10).cuda()
x, y = torch.randn(12, 16).cuda(), torch.arange(12).cuda() % 10
print(json.dumps([form_of_loss(eval(text), items=12) for text in json.loads(sys.argv[1])]))
"""


def test_the_form_of_a_loss_is_read_from_its_graph() -> None:
    done = client.run([sys.executable, "-c", _READ, json.dumps(list(FORMS))])
    assert done.returncode == 0, done.stderr
    assert dict(zip(FORMS, map(LossForm, json.loads(done.stdout)), strict=True)) == FORMS


@pytest.mark.parametrize(
    ("loss", "ignore"),
    [
        ("F.cross_entropy(model(x), y)", IGNORE),
        ("F.cross_entropy(model(x), y, ignore_index=3)", ""),
        ("F.cross_entropy(model(x), y, reduction='sum')", IGNORE),
        ("F.mse_loss(model(x)[:, 0], y * 1.0) / 3 + model(x).mean()", ""),
    ],
)
def test_a_loss_is_weighed_so_that_the_gradients_are_the_same(tmp_path: Path, loss: str, ignore: str) -> None:
    script = tmp_path / "train.py"
    text = SCRIPT.replace("LOSS", loss).replace("IGNORE", ignore)
    script.write_text(text)
    facts = peaks(script, diagnose=True).training
    assert facts is not None
    assert CHANGE.gradients_for is not None
    assert CHANGE.gradients_for(facts) is Gradients.ROUNDING
    edits = CHANGE.recipe_for(facts, "4").edits
    assert edits
    by_hand = tmp_path / "by_hand.py"
    by_hand.write_text(edited(text, edits))
    assert difference(told_on_cpu(script), told_on_cpu(by_hand)) < 1e-12


@pytest.mark.parametrize(
    ("loss", "ignore", "gradients"),
    [
        ("torch.nn.CrossEntropyLoss()(model(x), y)", IGNORE, Gradients.CHANGED),
        ("torch.nn.CrossEntropyLoss(ignore_index=3)(model(x), y)", "", Gradients.CHANGED),
        ("torch.nn.CrossEntropyLoss()(model(x), y)", "", Gradients.COUNTS),
        ("model(x).square().sum() / 12", "", Gradients.UNKNOWN),
    ],
)
def test_a_loss_that_is_not_weighed_is_said_to_differ(
    tmp_path: Path, loss: str, ignore: str, gradients: Gradients
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("LOSS", loss).replace("IGNORE", ignore))
    facts = peaks(script, diagnose=True).training
    assert facts is not None
    assert CHANGE.gradients_for is not None
    assert CHANGE.gradients_for(facts) is gradients


def test_a_sum_has_no_share_from_outside_either(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = SCRIPT.replace("LOSS", "F.cross_entropy(model(x), y, reduction='sum')").replace("IGNORE", IGNORE)
    script.write_text(text)
    assert difference(told_on_cpu(script), told_on_cpu(script, "accumulate=4")) < 1e-12


def test_targets_that_are_counted_read_well(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = SCRIPT.replace("LOSS", "F.cross_entropy(model(x), y)").replace("IGNORE", IGNORE)
    script.write_text(text)
    run = peaks(script, diagnose=True)
    assert bytes_of(run) == bytes_of(peaks(script)), "to read the loss changes no byte"
    facts = run.training
    assert facts is not None
    assert facts.loop.ignores_targets
    found = edited(text, CHANGE.recipe_for(facts, "4").edits)
    assert (
        "    count = (y != -100).sum()\n"
        "    for x, y in zip(x.chunk(4), y.chunk(4)):\n"
        '        loss = F.cross_entropy(model(x), y, reduction="sum")\n'
        "        loss = loss / count\n"
        "        loss.backward()\n" in found
    )
