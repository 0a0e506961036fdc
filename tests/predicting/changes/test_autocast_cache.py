"""Autocast's cache next to checkpointing: without it, the peak is that of the edited script."""

from pathlib import Path

import pytest

from tests.predicting.changes.runs import bytes_of, peaks
from tests.predicting.changes.test_model_changes import by_hand
from ullage.predicting.changes.autocast_cache import CHANGE

SCRIPT = """
import torch
from torch.utils.checkpoint import checkpoint

model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def run(x):
    for block in model:
        x = CALL
    return x

for _ in range(3):
    for part in range(2):
        x = torch.randn(16, 1024, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = run(x)
        x.float().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_cache_is_off_to_the_byte_of_the_written_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("CALL", "checkpoint(block, x, use_reentrant=False)"))
    before = peaks(script, diagnose=True)
    assert before.training is not None
    assert CHANGE.settings_for(before.training).settings == ("on",)
    made = peaks(script, "autocast_cache=on")
    weights = 2 * 1024 * 1024
    assert before.peak_allocated_bytes - made.peak_allocated_bytes > 4 * weights
    [text] = by_hand(CHANGE.recipe_for(before.training, "on")).values()
    assert 'torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False)' in text
    assert bytes_of(peaks(script, edited={str(script): text})) == bytes_of(made)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("CALL", "block(x)", "does not use activation checkpointing"),
        ("dtype=torch.bfloat16", "dtype=torch.bfloat16, cache_enabled=False", "the cache is off already"),
        ('with torch.autocast("cuda", dtype=torch.bfloat16):', "if True:", "does not run under autocast"),
    ],
)
def test_why_it_is_not_tried(tmp_path: Path, old: str, new: str, why: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace(old, new).replace("CALL", "checkpoint(block, x, use_reentrant=False)"))
    facts = peaks(script, diagnose=True).training
    assert facts is not None
    assert why in CHANGE.settings_for(facts).why_not
