"""Adapters in the data type of the base model: a package with PEFT's function stands in."""

from pathlib import Path

import pytest

from tests.predicting.changes.runs import bytes_of, peaks
from tests.predicting.changes.test_model_changes import by_hand
from ullage.predicting.changes.adapter_dtype import CHANGE

PEFT = """
import torch
from peft.tuners.lora import Adapted

def get_peft_model(model, config, autocast_adapter_dtype=True):
    for parameter in model.parameters():
        parameter.requires_grad = False
    for number, layer in enumerate(model):
        model[number] = Adapted(layer)
        if autocast_adapter_dtype:
            model[number].a.float(), model[number].b.float()
    return model
"""
LORA = """
from torch import nn

class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        kind = base.weight.dtype
        self.base = base
        self.a = nn.Linear(base.in_features, 8, bias=False, dtype=kind)
        self.b = nn.Linear(8, base.out_features, bias=False, dtype=kind)
    def forward(self, x):
        return self.base(x) + self.b(self.a(x.to(self.a.weight.dtype))).to(x.dtype)
"""
SCRIPT = """
import torch
from peft import get_peft_model

model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6))).to(torch.bfloat16)
model = get_peft_model(model, "config")
model = model.cuda()
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
for _ in range(3):
    model(torch.rand(4096, 512, device="cuda", dtype=torch.bfloat16)).float().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tuners = tmp_path / "packages" / "peft" / "tuners"
    tuners.mkdir(parents=True)
    (tuners / "__init__.py").write_text("")
    (tuners / "lora.py").write_text(LORA)
    (tuners.parent / "mapping_func.py").write_text(PEFT)
    (tuners.parent / "mapping.py").write_text("from peft.mapping_func import get_peft_model\n")
    (tuners.parent / "__init__.py").write_text("from peft.mapping import get_peft_model\n")
    monkeypatch.setenv("PYTHONPATH", str(tuners.parents[1]))
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_adapters_of_16_bits_save_the_casts_of_each_input(script: Path) -> None:
    before = peaks(script, diagnose=True)
    assert before.training is not None
    assert CHANGE.settings_for(before.training).settings == ("on",)
    made = peaks(script, "adapter_dtype=on")
    assert made.changes_made == {"adapter_dtype=on": 1}
    saved_bytes = before.peak_allocated_bytes - made.peak_allocated_bytes
    assert saved_bytes > 4 * 4 * 4096 * 512  # at the peak, some layers have freed their copies
    [text] = by_hand(CHANGE.recipe_for(before.training, "on")).values()
    assert 'get_peft_model(model, "config", autocast_adapter_dtype=False)' in text
    assert bytes_of(peaks(script, edited={str(script): text})) == bytes_of(made)


@pytest.mark.parametrize(
    ("old", "new"), [(".to(torch.bfloat16)", ""), ('"config"', '"config", autocast_adapter_dtype=False')]
)
def test_without_adapters_in_float32_it_is_not_tried(script: Path, old: str, new: str) -> None:
    kind = "torch.float32" if old.startswith(".to") else "torch.bfloat16"
    script.write_text(SCRIPT.replace("dtype=torch.bfloat16", f"dtype={kind}").replace(old, new))
    facts = peaks(script, diagnose=True).training
    assert facts is not None
    assert "no adapters of PEFT in float32" in CHANGE.settings_for(facts).why_not
