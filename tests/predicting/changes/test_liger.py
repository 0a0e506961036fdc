"""Liger-Kernel's loss: the function for the model's type is read from its text, and called behind the model."""

from pathlib import Path

import pytest

from tests.predicting.changes.runs import bytes_of, peaks
from ullage.predicting.changes.loss.fused_loss import CHANGE
from ullage.predicting.editing.apply import edited

SCRIPT = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

config = GPT2Config(vocab_size=8000, n_positions=128, n_embd=64, n_layer=2, n_head=4)
model = GPT2LMHeadModel(config).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(3):
    tokens = torch.randint(0, 8000, (16, 128), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PATCHES = """
import types
import torch
from torch.utils.checkpoint import checkpoint


def forward(self, input_ids, labels):
    rows, targets = self.transformer(input_ids)[0][:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    parts = zip(rows.split(256), targets.split(256))
    total = sum(checkpoint(summed, part, self.lm_head, wanted, use_reentrant=False) for part, wanted in parts)
    return types.SimpleNamespace(loss=total / len(targets))


def summed(rows, head, targets):
    return torch.nn.functional.cross_entropy(head(rows), targets, reduction="sum")


def apply_liger_kernel_to_gpt2(
    rope: bool = True, fused_linear_cross_entropy: bool = True, model=None, *, layer_norm: bool = True
):
    assert (rope, layer_norm) == (False, False)
    model.forward = types.MethodType(forward, model)


def apply_liger_kernel_to_other(rope: bool = True, model=None):
    pass


MODEL_TYPE_TO_APPLY_LIGER_FN = {"gpt2": apply_liger_kernel_to_gpt2, "other": apply_liger_kernel_to_other}
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def install(patches: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library of that name stands in."""
    package = folder / "packages" / "liger_kernel" / "transformers"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from liger_kernel.transformers.monkey_patch import *\n")
    (package / "monkey_patch.py").write_text(patches)
    monkeypatch.setenv("PYTHONPATH", str(package.parent.parent))
    monkeypatch.syspath_prepend(str(package.parent.parent))


def test_the_call_behind_the_model_is_the_change_from_outside_to_the_byte(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(PATCHES, tmp_path, monkeypatch)
    as_it_is = peaks(script, diagnose=True)
    assert as_it_is.training is not None
    assert CHANGE.settings_for(as_it_is.training).settings == ["liger"]
    text = edited(SCRIPT, CHANGE.recipe_for(as_it_is.training, "liger").edits)
    assert "from liger_kernel.transformers import apply_liger_kernel_to_gpt2\n" in text
    call = "apply_liger_kernel_to_gpt2(model=model, rope=False, fused_linear_cross_entropy=True, layer_norm=False)"
    assert f'model = GPT2LMHeadModel(config).to("cuda")\n{call}\n' in text
    made = peaks(script, "fused_loss=liger")
    assert made.changes_made == {"fused_loss=liger": 1}
    assert bytes_of(made) == bytes_of(peaks(script, edited={str(script): text}))
    assert bytes_of(made) < bytes_of(as_it_is)


@pytest.mark.parametrize(
    ("patches", "why"),
    [
        ('raise ImportError("it requires transformers >= 5.0.0, got 4.57.1. Install another")', "transformers >= 5.0"),
        (PATCHES.replace('"gpt2": apply_liger_kernel_to_gpt2, ', ""), "no loss for models of type gpt2"),
        (PATCHES.replace('"gpt2": apply_liger_kernel_to_gpt2', '"gpt2": apply_liger_kernel_to_other'), "no loss for"),
    ],
)
def test_where_it_cannot_be_used_the_run_is_as_it_was(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patches: str, why: str
) -> None:
    install(patches, tmp_path, monkeypatch)
    made = peaks(script, "fused_loss=liger", diagnose=True)
    assert why in made.changes_refused["fused_loss=liger"]
    assert made.training is not None
    assert why in CHANGE.settings_for(made.training).why_not or "ImportError" in patches
    assert made.steps[-1].complete
