"""PyTorch's linear_cross_entropy: the same loss and gradients, without the logits (torch 2.13 and later)."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

from tests.forked import client
from tests.predicting.changes.runs import bytes_of, peaks
from tests.predicting.changes.test_model_changes import by_hand
from ullage.predicting.changes.loss.fused_loss import CHANGE

HAS_IT = tuple(map(int, importlib.metadata.version("torch").split(".")[:2])) >= (2, 13)
needs_it = pytest.mark.skipif(not HAS_IT, reason="torch 2.13 introduced linear_cross_entropy with options")
MODEL = """
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def __init__(self, width=128, vocabulary=8000):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(2)))
        self.head = nn.Linear(width, vocabulary, bias=False)
    def forward(self, tokens):
        return self.head(self.blocks(self.tokens(tokens)))

model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    tokens = torch.randint(0, 8000, (16, 129), device="cuda")
    CONTEXT
        logits = model(tokens[:, :-1])
        loss = LOSS
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PLAIN = "F.cross_entropy(logits.view(-1, logits.size(-1)), tokens[:, 1:].flatten())"
SMOOTHED = PLAIN.replace("flatten())", "flatten(), label_smoothing=0.1)")

LOGITS = 4 * 16 * 128 * 8000
"""The bytes of the logits."""


def script_in(folder: Path, loss: str = PLAIN, context: str = "if True:") -> Path:
    path = folder / "train.py"
    path.write_text(MODEL.replace("LOSS", loss).replace("CONTEXT", context))
    return path


@needs_it
@pytest.mark.parametrize("context", ["if True:", 'with torch.autocast("cuda", dtype=torch.bfloat16):'])
def test_the_logits_are_never_stored(tmp_path: Path, context: str) -> None:
    script = script_in(tmp_path, context=context)
    before = peaks(script, diagnose=True)
    assert before.training is not None
    assert CHANGE.settings_for(before.training).settings == ["1024", "linear:head"]
    made = peaks(script, "fused_loss=linear:head")
    assert made.changes_made == {"fused_loss=linear:head": 1}
    assert before.peak_allocated_bytes - made.peak_allocated_bytes > LOGITS
    assert made.peak_allocated_bytes < peaks(script, "fused_loss=1024").peak_allocated_bytes
    [text] = by_hand(CHANGE.recipe_for(before.training, "linear:head")).values()
    assert "model = Model().cuda()\nLaterLogits.in_training(model.head)\n" in text
    assert bytes_of(peaks(script, edited={str(script): text})) == bytes_of(made)


@needs_it
def test_with_label_smoothing_it_is_not_tried(tmp_path: Path) -> None:
    script = script_in(tmp_path, SMOOTHED)
    before = peaks(script, diagnose=True)
    assert before.training is not None
    assert CHANGE.settings_for(before.training).settings == ["1024"]
    made = peaks(script, "fused_loss=linear:head")  # the logits are computed, but no variable keeps them
    assert 0 <= before.peak_allocated_bytes - made.peak_allocated_bytes <= LOGITS


@pytest.mark.skipif(HAS_IT, reason="only without linear_cross_entropy")
def test_an_older_torch_does_not_have_it(tmp_path: Path) -> None:
    script = script_in(tmp_path)
    made = peaks(script, "fused_loss=linear:head", diagnose=True)
    assert "torch 2.13" in made.changes_refused["fused_loss=linear:head"]
    assert made.training is not None
    assert CHANGE.settings_for(made.training).settings == ["1024"]


VALUES = """
import ullage
ullage.emulate("T4")
import torch
import torch.nn.functional as F
from ullage.predicting.changes.loss.later_logits import LaterLogits
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(4, 16, 8, requires_grad=True)
t = torch.randint(0, 40, (4, 16))
t[0, :3] = -100
LOSSES = [
    lambda l: F.cross_entropy(l.view(-1, l.size(-1)), t.view(-1)),
    lambda l: F.cross_entropy(l.flatten(0, 1).float().double(), t.flatten()),
    lambda l: F.cross_entropy(l[:, :-1].reshape(-1, 40), t[:, 1:].reshape(-1), reduction="sum"),
    lambda l: F.cross_entropy(l[..., :-1, :].contiguous().view(-1, 40), t[..., 1:].flatten()),
    lambda l: F.cross_entropy(l[:, 2::3, :].flatten(0, 1), t[:, 2::3].clamp(min=0).flatten(), ignore_index=7),
    lambda l: torch.nn.CrossEntropyLoss()(l.flatten(0, 1), t.flatten()),
    lambda l: torch.nn.CrossEntropyLoss(weight=torch.rand(40).sin())(l.flatten(0, 1), t.flatten()),
    lambda l: F.cross_entropy(l.flatten(0, 1), t.flatten(), label_smoothing=0.1),
    lambda l: F.cross_entropy(l.flatten(0, 1), torch.rand(64, 40).sin()),
    lambda l: F.cross_entropy(l.transpose(1, 2), t),
    lambda l: F.cross_entropy(l[0], t[0]),
    lambda l: F.cross_entropy(l[..., :20].flatten(0, 1), t.clamp(min=0).flatten() % 20),
    lambda l: F.cross_entropy(torch.cat([l, l]).flatten(0, 1), torch.cat([t, t]).flatten()),
    lambda l: (2 - l / 2).softmax(-1).square().mean() + l.mean() + l.view(-1).sum() + l.view(8, -1).std(),
    lambda l: F.cross_entropy(l.flatten(0, 1), t.flatten()) + 0 * l.detach().argmax(-1).sum(),
]
for bias in (False, True):
    for number, loss_of in enumerate(LOSSES):
        told = []
        for later in (False, True):
            torch.manual_seed(number)
            head = torch.nn.Linear(8, 40, bias=bias)
            if later:
                LaterLogits.in_training(head)
            x.grad = None
            torch.manual_seed(1)
            loss = loss_of(head(x))
            assert type(loss) is torch.Tensor
            loss.backward()
            told.append([loss.detach(), x.grad.clone(), *(each.grad for each in head.parameters())])
        differences = [(one - other).abs().max().item() for one, other in zip(*told)]
        assert max(differences) < (1e-6 if number == 1 else 1e-12), (number, bias, differences)
head.eval()
assert type(head(x)) is torch.Tensor
"""


@needs_it
def test_the_loss_and_the_gradients_are_the_same_however_the_logits_are_used() -> None:
    done = client.run([sys.executable, "-c", VALUES], timeout=900)
    assert done.returncode == 0, done.stderr
